"""A federation's data: one contiguous store, and for each client a slice of an index into it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.formatting import format_value
from .arrays import check_alike, importance_of, offsets_of, pair_of
from .augment import Augment
from .normalize import Normalize

if TYPE_CHECKING:
    from .describe import Description
    from .partition import Partition

Arrays = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Who holds which samples. Make one with `from_arrays`, or by partitioning a `Dataset`."""

    x: Tensor
    y: Tensor
    index: Tensor | None
    """Positions in the store, client after client; None means the store is in that order already."""
    offsets: Tensor
    """Client i holds entries offsets[i] … offsets[i+1]−1 of the index."""
    importance: Tensor
    """p_i, float64, sums to one."""
    test: Arrays | None = None
    normalize: Normalize | None = None
    augment: Augment | None = None
    """What training, and only training, does to images before they are normalised."""
    names: Sequence[str] | None = None
    """What the clients are called, where they have names."""
    labels: Sequence[str] | None = None
    """What the classes are called."""

    @classmethod
    def from_arrays(
        cls,
        clients: Iterable[tuple[Any, Any]],
        test: tuple[Any, Any] | None = None,
        importance: Any = None,
    ) -> FederatedData:
        """A federation from one (x_i, y_i) pair of array-likes per client.

        `test` is another such pair; `importance` one number ≥ 0 per client (default: its share of the
        samples), scaled to sum to one. Arrays keep their dtype; floating ones are cast to the run's
        dtype on use.
        """
        if not isinstance(clients, Iterable):
            raise ValueError(f"FederatedData: 'clients' must be a list of pairs (x, y), got {format_value(clients)}")
        pairs = [pair_of(pair, f"client {i}") for i, pair in enumerate(clients)]
        if not pairs:
            raise ValueError("FederatedData: 'clients' must hold at least one client, got none")
        tested = None if test is None else pair_of(test, "the test set")
        for i, pair in enumerate(pairs):
            check_alike(pair, pairs[0], f"client {i}")
        if tested is not None:
            check_alike(tested, pairs[0], "the test set")
        sizes = torch.tensor([len(x) for x, _ in pairs])
        return cls(
            x=torch.from_numpy(np.concatenate([x for x, _ in pairs])),  # of the widest dtype among the clients'
            y=torch.from_numpy(np.concatenate([y for _, y in pairs])),
            index=None,
            offsets=offsets_of(sizes),
            importance=importance_of(sizes, importance),
            test=None if tested is None else (torch.from_numpy(tested[0].copy()), torch.from_numpy(tested[1].copy())),
        )

    @classmethod
    def from_folder(
        cls,
        root: str | os.PathLike[str],
        partition: Partition | None = None,
        clients: int | None = None,
        seed: int = 0,
        size: int | tuple[int, int] | None = None,
    ) -> FederatedData:
        """A federation from folders of images: CLIENT/CLASS/image, or CLASS/image with a `partition`.

        A folder `test` (CLASS/image) beside a folder `train` is the test set. Images must agree in size, or are
        resized to `size`, (height, width). Needs Pillow.
        """
        from .importers.folder import dataset_from_folder

        return dataset_from_folder(root, size).federate("from_folder", partition, clients, seed)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        client_column: Hashable | None = None,
        target_column: Hashable | None = None,
        input_columns: Hashable | Sequence[Hashable] | None = None,
        test: Any = None,
        partition: Partition | None = None,
        clients: int | None = None,
        seed: int = 0,
    ) -> FederatedData:
        """A federation from a table: a pandas or polars frame, a pyarrow table, or the path of a parquet file.

        Rows with the same value of `client_column` are one client's; without such a column, give a `partition`. The
        target is `target_column` (default: "label", "target" or "y"), inputs are `input_columns` (default: every other
        column), numbers or one column of lists or encoded images. `test` is another such table.
        """
        from .importers.frame import dataset_from_frame

        dataset = dataset_from_frame(frame, client_column, target_column, input_columns, test)
        return dataset.federate("from_frame", partition, clients, seed)

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        client_column: Hashable | None = None,
        target_column: Hashable | None = None,
        input_columns: Hashable | Sequence[Hashable] | None = None,
        test: Any = None,
        partition: Partition | None = None,
        clients: int | None = None,
        seed: int = 0,
    ) -> FederatedData:
        """A federation from a Hugging Face `Dataset`, or a `DatasetDict` with splits "train" and "test".

        Arguments as in `from_frame`; `partition` may be a Flower Datasets partitioner, whose own column then needs
        no other mention.
        """
        from .importers.hf import dataset_from_hf

        made, scheme = dataset_from_hf(dataset, client_column, target_column, input_columns, test, partition)
        return made.federate("from_hf", scheme, clients, seed)

    @classmethod
    def from_flower(cls, partitioner: Any, test: Any = None, **columns: Any) -> FederatedData:
        """A federation from a Flower Datasets partitioner that has its data set; `columns` as in `from_hf`."""
        from .partition.flower import FromFlower

        return cls.from_hf(FromFlower(partitioner).dataset, test=test, partition=partitioner, **columns)

    def declare(self, normalize: Normalize | None = None, augment: Augment | None = None) -> FederatedData:
        """The same federation with another normalisation or augmentation; what is not given stays."""
        return replace(self, normalize=normalize or self.normalize, augment=augment or self.augment)

    def validate(self) -> None:
        """Refuse a federation whose parts contradict each other, as one put together by hand may."""
        entries, offsets, p = self.x if self.index is None else self.index, self.offsets, self.importance
        for name, right in (
            ("y", len(self.x) == len(self.y) > 0),
            ("offsets", _is_offsets(offsets) and int(offsets[-1]) <= len(entries)),
            ("index", self.index is None or _is_index(self.index, len(self.x))),
            ("importance", p.shape == (len(offsets) - 1,) and bool((p.isfinite() & (p >= 0)).all())),
            ("normalize", self.normalize is None or self.normalize.fits(self.x)),
        ):
            if not right:
                raise ValueError(f"FederatedData: '{name}' must fit the other parts; use from_arrays or a partition")

    def describe(self) -> Description:
        """How many samples clients have, and how different their labels are; prints as a table, and plots."""
        from .describe import describe

        return describe(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"FederatedData({len(self)} clients, {int(self.offsets[-1])} samples)"

    @cached_property
    def sizes(self) -> Tensor:
        """n_i."""
        return self.offsets.diff()

    def inputs(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Stored samples as the model gets them: normalised, and in the run's dtype."""
        if self.normalize is not None:
            return self.normalize(x, dtype)
        return x.to(dtype) if x.is_floating_point() else x

    def fingerprint(self) -> str:
        """A hash that tells federations apart: who holds what, every target, and a thousand samples; and the tests."""
        digest = hashlib.sha256(repr((self.normalize, self.augment)).encode())
        samples = [(self.x, self.y), *([] if self.test is None else [self.test])]
        some = [part for x, y in samples for part in (y, x[:: max(1, len(x) // 1000)])]
        for part in (self.offsets, self.importance, self.index, *some):
            if part is not None:
                digest.update(part.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def client(self, i: int) -> Arrays:
        """The samples of client i, as stored."""
        if not 0 <= i < len(self):
            raise IndexError(f"FederatedData: client must be in 0 … {len(self) - 1}, got {i}")
        span = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        where: Any = span if self.index is None else self.index[span]
        return self.x[where], self.y[where]


def _is_offsets(offsets: Tensor) -> bool:
    whole = offsets.dtype == torch.int64 and offsets.ndim == 1 and len(offsets) > 1
    return whole and int(offsets[0]) == 0 and bool((offsets.diff() > 0).all())


def _is_index(index: Tensor, samples: int) -> bool:
    whole = index.dtype == torch.int64 and index.ndim == 1 and len(index) > 0
    return whole and int(index.min()) >= 0 and int(index.max()) < samples
