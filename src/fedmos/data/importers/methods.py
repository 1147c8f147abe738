"""The `from_…` methods of `FederatedData` that read tables, folders and data sets of other libraries."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..federated import FederatedData
    from ..partition import Partition
    from .encoding import Encoding


class Importers:
    """Class methods that create a `FederatedData`."""

    @classmethod
    def from_folder(
        cls,
        root: str | os.PathLike[str],
        partition: Partition | None = None,
        clients: int | None = None,
        seed: int = 0,
        size: int | tuple[int, int] | None = None,
        holdout: float | None = None,
    ) -> FederatedData:
        """Create a federation from folders of images: CLIENT/CLASS/image, or CLASS/image with a `partition`.

        A folder "test" (CLASS/image) next to a folder "train" is the test set. Images in CLIENT/test/CLASS next to
        CLIENT/train/CLASS are the test samples of that client. Those in test/CLIENT/CLASS next to train/CLIENT/CLASS
        are both, if the clients of the two parts are the same. Needs Pillow.

        Args:
            root: The folder.
            partition: Divides the images among clients (default: by the CLIENT folders).
            clients: Number of clients.
            seed: Seed of the partition.
            size: Height and width to which images are resized; without it, all images must have the same size.
            holdout: The share of each client's images that become its own test samples; see `Dataset.partition`.

        Raises:
            ValueError: If an argument or an image is invalid.
            FileNotFoundError: If `root` is not a folder.

        Example:
            ```python
            data = fm.FederatedData.from_folder("photos", fm.partition.Dirichlet(alpha=0.3), clients=20, size=32)
            ```
        """
        from .folder import dataset_from_folder

        return dataset_from_folder(root, size).federate("from_folder", partition, clients, seed, holdout)

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
        *,
        split_column: Hashable | None = None,
        holdout: float | None = None,
        categorical: bool | Sequence[Hashable] | Mapping[Hashable, Sequence[Any]] | None = None,
        missing: Any = None,
        one_hot: bool = True,
        dtype: Any = None,
        encoding: Encoding | None = None,
    ) -> FederatedData:
        """Create a federation from a table.

        Columns of numbers and categories become one row of inputs per sample. If all are integers, they stay int64,
        for example as the numbers of embeddings (`dtype="float32"` makes them real numbers). Otherwise inputs are
        float32, and an integer that float32 would round is refused. The encoding is the same for all clients and the
        test set; it is `data.encoding`, which also encodes new rows.

        Args:
            frame: A pandas or polars frame, a pyarrow table, or the path of a parquet file.
            client_column: Rows with the same value in this column belong to one client.
            target_column: The column of targets (default: "label", "target" or "y").
            input_columns: Columns of numbers, or one column of lists or encoded images (default: all other columns).
            test: A table with the test set.
            partition: Divides the rows among clients; needed without `client_column`.
            clients: Number of clients.
            seed: Seed of the partition.
            split_column: The column that says which rows are test samples of their client, which are never used in
                training: "train" or "test", or False or True, in each row.
            holdout: The share of each client's rows that become its own test samples; see `Dataset.partition`. The
                encoding is that of all rows of `frame`.
            categorical: Columns of categories: their names, a dictionary with the categories of each, or True for all
                columns of strings. Without a dictionary, the categories are the values of the training rows.
            missing: Replaces missing values: "mean", "median" or "most_frequent" of the training rows, or a number;
                a dictionary has a choice per column. Missing values of a categorical column become a category of their
                own ("category" in a dictionary). Without a choice, missing values are refused.
            one_hot: Whether a categorical column becomes one input, 0 or 1, per category; otherwise the number of the
                category.
            dtype: "int64", "float32" or "float64" (default: by the columns, see above).
            encoding: The encoding of another federation, in place of the four arguments before it.

        Raises:
            ValueError: If an argument or a column is invalid.
            FileNotFoundError: If the parquet file does not exist.

        Example:
            >>> import pandas
            >>> frame = pandas.DataFrame({"user": ["a", "a", "b"], "height": [1.0, 2.0, 3.0], "label": [0, 1, 1]})
            >>> fm.FederatedData.from_frame(frame, client_column="user").names
            ['a', 'b']
        """
        from .fit import EncodingOptions
        from .frame import dataset_from_frame

        options = EncodingOptions(categorical, missing, one_hot, dtype, encoding)
        dataset = dataset_from_frame(frame, client_column, target_column, input_columns, test, options, split_column)
        return dataset.federate("from_frame", partition, clients, seed, holdout)

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        client: Hashable | None = None,
        target: Hashable | None = None,
        inputs: Hashable | Sequence[Hashable] | None = None,
        test: Any = None,
        partition: Partition | None = None,
        clients: int | None = None,
        seed: int = 0,
        *,
        split: Hashable | None = None,
        holdout: float | None = None,
        categorical: bool | Sequence[Hashable] | Mapping[Hashable, Sequence[Any]] | None = None,
        missing: Any = None,
        one_hot: bool = True,
        dtype: Any = None,
        encoding: Encoding | None = None,
        delimiter: str = ",",
    ) -> FederatedData:
        """Create a federation from a CSV file. Arguments that are not listed are those of `from_frame`.

        The first line of the file has the names of the columns. Empty fields and fields such as NA are missing values.
        Needs pyarrow.

        Args:
            path: The file.
            client: The column of clients.
            target: The column of targets (default: "label", "target" or "y").
            inputs: The columns of inputs (default: all other columns).
            split: The column that says which rows are test samples; `split_column` of `from_frame`.
            test: A CSV file or a table with the test set.
            delimiter: The character between fields.

        Raises:
            ValueError: If an argument, the file or a column is invalid.
            FileNotFoundError: If the file does not exist.

        Example:
            ```python
            data = fm.FederatedData.from_csv(
                "patients.csv", client="hospital", target="outcome", categorical=["sex"], missing="median"
            )
            ```
        """
        from .fit import EncodingOptions
        from .frame import dataset_from_csv

        options = EncodingOptions(categorical, missing, one_hot, dtype, encoding)
        dataset = dataset_from_csv(path, client, target, inputs, test, options, delimiter, split)
        return dataset.federate("from_csv", partition, clients, seed, holdout)

    @classmethod
    def from_datasets(
        cls,
        datasets: Any,
        test: Any = None,
        target: str | None = None,
        importance: Any = None,
        names: Sequence[str] | None = None,
        *,
        tests: Any = None,
        padding: float | None = None,
        mask: str | None = None,
        lengths: str | None = None,
    ) -> FederatedData:
        """Create a federation from one `torch.utils.data.Dataset` per client.

        Every item is read once, so a random transform of the data set is applied once; use `declare(augment=…)` for
        random crops and flips. Arguments that are not listed are those of `from_arrays`.

        Args:
            datasets: A list of map-style data sets, or a dictionary of them by the client's name. An item is a pair
                (x, y), where x can be a dictionary of several inputs, or a dictionary with inputs and a target.
            test: A data set with the test samples.
            tests: A list of data sets with the test samples of each client, None for a client without any, or a
                dictionary of them by the client's name.
            target: The key of the target if items are dictionaries (default: "label", "labels", "target" or "y").

        Raises:
            ValueError: If a data set is not map-style, cannot be read, or items have different shapes.

        Example:
            >>> from torch.utils.data import TensorDataset
            >>> clients = [TensorDataset(torch.randn(n, 3), torch.zeros(n)) for n in (4, 6)]
            >>> fm.FederatedData.from_datasets(clients)
            FederatedData(2 clients, 10 samples)
        """
        from ..federated import FederatedData
        from .torch_datasets import clients_of, samples_of, tests_of

        tested = None if test is None else samples_of(test, "the test set", target)
        clients = clients_of(datasets, target)
        own = None if tests is None else tests_of(tests, target)
        return FederatedData.from_arrays(
            clients, tested, importance, names, tests=own, padding=padding, mask=mask, lengths=lengths
        )

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
        *,
        split_column: Hashable | None = None,
        holdout: float | None = None,
        categorical: bool | Sequence[Hashable] | Mapping[Hashable, Sequence[Any]] | None = None,
        missing: Any = None,
        one_hot: bool = True,
        dtype: Any = None,
        encoding: Encoding | None = None,
    ) -> FederatedData:
        """Create a federation from a Hugging Face data set. Arguments that are not listed are those of `from_frame`.

        Args:
            dataset: A `Dataset`, or a `DatasetDict` with splits "train" and optionally "test".
            input_columns: As in `from_frame`. The column of a Flower partitioner is not an input by default.
            test: A `Dataset` with the test set.
            partition: As in `from_frame`; it can be a Flower Datasets partitioner.

        Raises:
            ValueError: If an argument or a column is invalid.

        Example:
            ```python
            femnist = datasets.load_dataset("flwrlabs/femnist")
            data = fm.FederatedData.from_hf(femnist, client_column="writer_id", target_column="character")
            ```
        """
        from .fit import EncodingOptions
        from .hf import dataset_from_hf

        options = EncodingOptions(categorical, missing, one_hot, dtype, encoding)
        made, scheme = dataset_from_hf(
            dataset, client_column, target_column, input_columns, test, partition, options, split_column
        )
        return made.federate("from_hf", scheme, clients, seed, holdout)

    @classmethod
    def from_flower(cls, partitioner: Any, test: Any = None, **columns: Any) -> FederatedData:
        """Create a federation from a Flower Datasets partitioner.

        Args:
            partitioner: A partitioner with a data set.
            test: A Hugging Face `Dataset` with the test set.
            columns: `target_column` and `input_columns`, as in `from_hf`.

        Raises:
            ValueError: If the partitioner has no data set, or a column is invalid.

        Example:
            ```python
            partitioner = flwr_datasets.partitioner.IidPartitioner(num_partitions=10)
            partitioner.dataset = datasets.load_dataset("ylecun/mnist", split="train")
            data = fm.FederatedData.from_flower(partitioner)
            ```
        """
        from ..partition.flower import FromFlower

        return cls.from_hf(FromFlower(partitioner).dataset, test=test, partition=partitioner, **columns)
