"""The entries of the catalog: shape, size, place of publication and checksum of every data set of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from ..normalize import Normalize

Kind = Literal["images", "characters", "words"]

_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """The names of the columns of a table; of several names, the first one in the table is used."""

    input: tuple[str, ...]
    target: tuple[str, ...] = ()
    """Empty if the target is the input shifted by one."""
    owner: tuple[str, ...] = ()
    """Empty if samples have no owners."""


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A published data set."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    """Shape of a stored sample."""
    classes: int
    """Number of classes."""
    train: int
    """Number of training samples."""
    test: int
    """Number of test samples."""
    columns: ColumnNames
    formats: tuple[str, ...]
    """Supported formats of local files, in the order in which they are searched; see `search.py`."""
    folders: tuple[str, ...]
    """Possible names of its sub-folder, in lower case."""
    normalize: Normalize | None = None
    """The usual normalisation of its inputs."""
    labels: tuple[str, ...] | None = None
    """The names of the classes."""
    hub: str | None = None
    """OWNER/NAME on the Hugging Face hub."""
    config: str | None = None
    """The configuration on the hub."""
    checksum: str | None = None
    """Checksum of the decoded arrays; see `builder.checksum`."""
    resize: bool = False
    """Whether images have different sizes and are resized to `shape`."""
    editions: int | None = None
    """Number of samples of the largest known edition, if it is not train + test."""
    label_bytes: int = 1
    """Number of label bytes before each image in CIFAR's binary version; the last one is used."""

    @property
    def row_bytes(self) -> int:
        """Size of a stored sample in bytes."""
        return prod(self.shape) * (2 if self.kind == "words" else 1)

    @property
    def limit(self) -> int:
        """Maximum decoded size in bytes: four times that of the published data set, and at least 64 MiB."""
        return max(4 * (self.editions or self.train + self.test) * self.row_bytes, 64 * _MEBIBYTE)


SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare, in its order (`models/utils/language_utils.py`)."""

VOCABULARY = 10_000
"""Number of words of StackOverflow, the most frequent ones; with padding, unknown, beginning and end: 10,004."""

_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905 - a hundred lines otherwise
)
_DIGITS, _CAPITALS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scale=255.0)

# Hub ids, configurations and columns are from stored copies of the dataset cards and were not tested online. Sizes of
# StackOverflow, Landmarks-User-160k (gldv2) and iNaturalist-User-120k are those of TensorFlow Federated, which provides
# them with their clients; no data set of the hub with these clients is known. The checksums were computed from files
# with the published SHA-256 and MD5 sums of the original form (IDX; CIFAR's binary version).
_ALL = (
    CatalogEntry(
        name="mnist",
        kind="images",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        normalize=Normalize(mean=0.1307, std=0.3081, scale=255.0),
        labels=tuple(_DIGITS),
        columns=ColumnNames(input=("image", "img"), target=("label",)),
        formats=("parquet", "idx"),
        folders=("mnist",),
        hub="ylecun/mnist",
        config="mnist",
        checksum="bede956102a8358cf80f6e5d5349bf93d3cb23d190cb758f10c88d6041aaf97e",
    ),
    CatalogEntry(
        name="fmnist",
        kind="images",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        normalize=Normalize(mean=0.2860, std=0.3530, scale=255.0),
        labels=_FASHION,
        columns=ColumnNames(input=("image", "img"), target=("label",)),
        formats=("parquet", "idx"),
        folders=("fmnist", "fashionmnist", "fashion_mnist", "fashion-mnist"),
        hub="zalando-datasets/fashion_mnist",
        config="fashion_mnist",
        checksum="045dc1a9b9f71c1698e4eb9d210c1d08fe8cd27e28622a0f992b484b9000a84b",
    ),
    CatalogEntry(
        name="cifar10",
        kind="images",
        shape=(3, 32, 32),
        classes=10,
        train=50_000,
        test=10_000,
        normalize=Normalize(mean=0.5, std=0.5, scale=255.0),
        labels=_CIFAR10,
        columns=ColumnNames(input=("img", "image"), target=("label",)),
        formats=("parquet", "cifar10"),
        folders=("cifar10", "cifar-10", "cifar-10-batches-bin", "cifar-10-binary"),
        hub="uoft-cs/cifar10",
        config="plain_text",
        checksum="5458a876aaec07f5d91ab3924a64b8218263520ad9d2c2c8be91538bb4b84e01",
    ),
    CatalogEntry(
        name="cifar100",
        kind="images",
        shape=(3, 32, 32),
        classes=100,
        train=50_000,
        test=10_000,
        # The usual means and standard deviations of the channels (not computed from the data).
        normalize=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), scale=255.0),
        labels=_CIFAR100,
        columns=ColumnNames(input=("img", "image"), target=("fine_label", "label")),
        formats=("parquet", "cifar100"),
        folders=("cifar100", "cifar-100", "cifar-100-binary"),
        hub="uoft-cs/cifar100",
        config="cifar100",
        label_bytes=2,
    ),
    CatalogEntry(
        name="femnist",
        kind="images",
        shape=(1, 28, 28),
        classes=62,
        train=732_849,  # approximate: the hub's 814,277 less one in ten of each writer's samples
        test=81_428,
        normalize=Normalize(mean=0.5, std=0.5, scale=255.0),
        labels=tuple(_DIGITS + _CAPITALS + _CAPITALS.lower()),
        columns=ColumnNames(input=("image",), target=("character", "label"), owner=("writer_id", "client_id")),
        formats=("parquet",),
        folders=("femnist",),
        hub="flwrlabs/femnist",
    ),
    CatalogEntry(
        name="shakespeare",
        kind="characters",
        shape=(80,),
        classes=len(SYMBOLS),
        train=804_180,  # of the bundled text
        test=184_126,
        labels=tuple(SYMBOLS),
        columns=ColumnNames(input=("x",), target=("y",), owner=("character_id", "client_id")),
        formats=("parquet", "leaf", "text"),
        folders=("shakespeare",),
        hub="flwrlabs/shakespeare",
        editions=4_226_158,  # LEAF's
        checksum="a8d4dac8fa16c6ab4c6e99f87ff4d387ac9ca0ba3c8a645942c58b908aaefa7d",
    ),
    CatalogEntry(
        name="stackoverflow",
        kind="words",
        shape=(20,),
        classes=VOCABULARY + 4,
        train=135_818_730,
        test=16_586_035,
        columns=ColumnNames(input=("tokens", "text", "sentence"), owner=("client_id", "user_id")),
        formats=("parquet",),
        folders=("stackoverflow",),
    ),
    CatalogEntry(
        name="gldv2",
        kind="images",
        shape=(3, 224, 224),
        classes=2028,
        train=164_172,
        test=19_526,
        normalize=_IMAGENET,
        labels=tuple(map(str, range(2028))),
        columns=ColumnNames(input=("image",), target=("label", "class"), owner=("client_id", "user_id")),
        formats=("parquet",),
        folders=("gldv2", "gld160k", "landmarks"),
        resize=True,
    ),
    CatalogEntry(
        name="inaturalist",
        kind="images",
        shape=(3, 224, 224),
        classes=1203,
        train=120_300,
        test=35_641,
        normalize=_IMAGENET,
        labels=tuple(map(str, range(1203))),
        columns=ColumnNames(input=("image",), target=("label", "class"), owner=("client_id", "user_id")),
        formats=("parquet",),
        folders=("inaturalist",),
        resize=True,
    ),
)

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in _ALL}
