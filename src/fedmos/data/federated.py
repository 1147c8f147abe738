"""The data of a federation: one contiguous store of samples, and an index into it with a slice per client."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from ..core.input_layout import InputLayout
from ..core.validation import check, require
from .arrays import (
    client_names,
    client_number,
    importance_of,
    is_index,
    is_offsets,
    listed_clients,
    listed_tests,
    offsets_of,
    sample_arrays,
)
from .augment import Augment, augment_rule
from .client_tests import ClientTests
from .describe import Description, describe
from .holdout import hold_out_of
from .importers.methods import Importers
from .normalize import Normalize, normalize_rule
from .padding import pad_samples
from .subset import split_clients, subset

if TYPE_CHECKING:
    from .importers.encoding import Encoding

Arrays = tuple[Tensor, Tensor]
Inputs = Tensor | dict[str, Tensor]
"""One input per sample, or several by name."""


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData(Importers):
    """The samples of every client, and a common test set.

    Create it with one of the `from_…` methods, or with `Dataset.partition`.

    Example:
        >>> clients = [(torch.zeros(20, 5), torch.arange(20) % 2) for _ in range(3)]
        >>> fm.FederatedData.from_arrays(clients)
        FederatedData(3 clients, 60 samples)
    """

    x: Tensor
    """The inputs of all samples."""
    y: Tensor
    """The targets of all samples."""
    index: Tensor | None
    """Positions in x and y, client after client; None if x and y are in that order already."""
    offsets: Tensor
    """Client i has the entries offsets[i] … offsets[i+1]−1 of the index."""
    importance: Tensor
    """The importances p_i, float64, with sum one."""
    test: Arrays | None = None
    """Inputs and targets of the test set."""
    normalize: Normalize | None = None
    """The normalisation of inputs."""
    augment: Augment | None = None
    """The augmentation of training images, applied before they are normalised."""
    names: Sequence[str] | None = None
    """The names of the clients, if they have names."""
    labels: Sequence[str] | None = None
    """The names of the classes."""
    encoding: Encoding | None = None
    """How the columns of a table became the inputs; `encoding.transform(table)` applies it to new rows."""
    layout: InputLayout | None = None
    """The names and types of several inputs per sample, which x has in one row; `layout.unpack(x)` returns them."""
    tests: ClientTests | None = None
    """The test samples of each client, a sequence of pairs (x, y)."""
    unseen: FederatedData | None = None
    """Clients that take no part in training and are evaluated only; see `split_clients`."""

    @classmethod
    def from_arrays(
        cls,
        clients: Iterable[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
        test: tuple[Any, Any] | None = None,
        importance: Any = None,
        names: Sequence[str] | None = None,
        *,
        tests: Sequence[tuple[Any, Any] | None] | Mapping[str, tuple[Any, Any] | None] | None = None,
        padding: float | None = None,
        mask: str | None = None,
        lengths: str | None = None,
    ) -> FederatedData:
        """Create a federation from arrays.

        Arrays keep their dtype; floating-point arrays are cast to the run's dtype when they are used. A sample can have
        several inputs: x_i is then a dictionary of array-likes, which the model's `forward` receives as keyword
        arguments of the same names.

        Args:
            clients: One pair (x_i, y_i) of array-likes per client, or a dictionary of such pairs by the client's name.
            test: A pair of array-likes for the test set.
            importance: One number ≥ 0 per client, scaled to sum one (default: the number of samples).
            names: The names of the clients.
            tests: One pair of array-likes per client, or None for a client without test samples of its own; or a
                dictionary of such pairs by the client's name.
            padding: Appended to sequences that are shorter than the longest, where x_i has a list of sequences of
                unequal length. Target sequences are padded with −100, which losses and accuracies ignore.
            mask: The name of an additional input, (n, length), that is true where there is no padding. Without names of
                its own, the padded input is called "x".
            lengths: The name of an additional input, (n,), with the lengths of the sequences.

        Returns:
            A `FederatedData`.

        Raises:
            ValueError: If the arrays are invalid or the clients' shapes and dtypes differ.

        Example:
            >>> clients = [(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(3)]
            >>> fm.FederatedData.from_arrays(clients, importance=[2, 1, 1]).importance
            tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
        """
        if isinstance(clients, Mapping):
            clients, names = list(clients.values()), [str(name) for name in clients] if names is None else names
        pairs = listed_clients(clients)
        own = listed_tests(tests, len(pairs), names)
        given = pad_samples([*pairs, *own, test], padding, mask, lengths)
        arrays = sample_arrays(given[: len(pairs)], given[-1], given[len(pairs) : -1])
        sizes = torch.tensor([len(x) for x, _ in arrays.clients])
        tested = arrays.test
        return cls(
            x=torch.from_numpy(np.concatenate([x for x, _ in arrays.clients])),  # in the widest dtype of the clients
            y=torch.from_numpy(np.concatenate([y for _, y in arrays.clients])),
            index=None,
            offsets=offsets_of(sizes),
            importance=importance_of(sizes, importance),
            test=None if tested is None else (torch.from_numpy(tested[0].copy()), torch.from_numpy(tested[1].copy())),
            tests=ClientTests.of(arrays.tests, arrays.layout),
            names=client_names(names, len(pairs)),
            layout=arrays.layout,
        )

    def __post_init__(self) -> None:
        check(self, normalize=normalize_rule, augment=augment_rule)
        if self.layout is not None and (self.normalize is not None or self.augment is not None):
            raise ValueError(
                "Cannot normalise or augment samples with several inputs; use inputs that are normalised already, or "
                "do it in the model"
            )
        if self.normalize is not None:
            object.__setattr__(self, "normalize", self.normalize.resolved(self.x))
        if self.tests is not None and self.tests.names is not self.names:
            object.__setattr__(self, "tests", replace(self.tests, names=self.names))

    def declare(self, normalize: Normalize | None = None, augment: Augment | None = None) -> FederatedData:
        """Return the federation with another normalisation or augmentation.

        Args:
            normalize: The normalisation (default: unchanged).
            augment: The augmentation (default: unchanged).

        Example:
            >>> data = data.declare(augment=fm.Augment(crop=1))
        """
        require("declare", "normalize", normalize, normalize_rule)
        require("declare", "augment", augment, augment_rule)
        return replace(self, normalize=normalize or self.normalize, augment=augment or self.augment)

    def subset(self, ids: Iterable[int | str]) -> FederatedData:
        """Return the federation of some of the clients. It shares the samples, and keeps the test set.

        Client i of the subset is the i-th of `ids`. The importances keep their ratios and are scaled to sum one.

        Args:
            ids: The clients, by number or name.

        Raises:
            ValueError: If no client is given, one is given twice or does not exist, or all have the importance 0.

        Example:
            >>> data.subset([2, 5, 7])
            FederatedData(3 clients, ... samples)
        """
        return subset(self, ids)

    def hold_out(self, share: float, seed: int = 0) -> FederatedData:
        """Return the federation with a share of each client's samples as its own test samples, as `partition` does.

        Importances that are numbers of samples become those of training samples; others stay.

        Args:
            share: The share of each client's samples.
            seed: Seed of the draw.

        Raises:
            ValueError: If `share` is not in (0, 1), or clients have test samples already.

        Example:
            >>> data.hold_out(0.2).tests
            ClientTests(10 clients, ... samples)
        """
        return hold_out_of(self, share, seed)

    def split_clients(self, share: float, seed: int = 0) -> tuple[FederatedData, FederatedData]:
        """Set clients aside that take no part in training.

        A run on the first federation returned evaluates the second one's clients, too, where it evaluates clients
        (`evaluate_clients`): it is the attribute `unseen` of the first.

        Args:
            share: The share of the clients to set aside; at least one is, and at least one is not.
            seed: Seed of the draw.

        Returns:
            The federation of the other clients, and that of the clients set aside, both in the order of this one.

        Raises:
            ValueError: If `share` is not in (0, 1), there is one client only, or clients are set aside already.

        Example:
            >>> seen, unseen = data.split_clients(0.2)
            >>> seen, unseen
            (FederatedData(8 clients, ... samples), FederatedData(2 clients, ... samples))
            >>> seen.unseen is unseen
            True
        """
        return split_clients(self, share, seed)

    def validate(self) -> None:
        """Raise ValueError if the fields are inconsistent."""
        entries, offsets, p = self.x if self.index is None else self.index, self.offsets, self.importance
        for name, right in (
            ("y", len(self.x) == len(self.y) > 0),
            ("offsets", is_offsets(offsets) and int(offsets[-1]) <= len(entries)),
            ("index", self.index is None or is_index(self.index, len(self.x))),
            ("importance", p.shape == (len(offsets) - 1,) and bool((p.isfinite() & (p >= 0)).all())),
            ("normalize", self.normalize is None or self.normalize.fits(self.x)),
            ("tests", self.tests is None or self.tests.fits(self.x, self.y, len(self))),
        ):
            if not right:
                raise ValueError(f"FederatedData: '{name}' must fit the other parts; use from_arrays or a partition")
        if self.unseen is not None:
            self.unseen.validate()

    def describe(self) -> Description:
        """Return statistics of the clients' sizes and labels. Its `str()` is a table, and `plot(path)` writes a chart.

        Example:
            >>> data.describe().clients
            10
        """
        return describe(self)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __repr__(self) -> str:
        return f"FederatedData({len(self)} clients, {int(self.offsets[-1])} samples)"

    @cached_property
    def sizes(self) -> Tensor:
        """Number of samples n_i of each client."""
        return self.offsets.diff()

    @overload
    def inputs(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor: ...
    @overload
    def inputs(self, x: Inputs, dtype: torch.dtype = torch.float32) -> Inputs: ...
    def inputs(self, x: Inputs, dtype: torch.dtype = torch.float32) -> Inputs:
        """Return stored inputs as the model receives them: normalised and in the run's dtype."""
        if isinstance(x, Mapping):
            return {name: v.to(dtype) if v.is_floating_point() else v for name, v in x.items()}
        if self.normalize is not None:
            return self.normalize(x, dtype)
        return x.to(dtype) if x.is_floating_point() else x

    def fingerprint(self) -> str:
        """Return a hash of the partition, all targets, and about a thousand inputs of each kind of samples."""
        declared = (self.normalize, self.augment) if self.layout is None else self.layout
        digest = hashlib.sha256(repr(declared).encode())
        samples = [(self.x, self.y), *([] if self.test is None else [self.test])]
        some = [part for x, y in samples for part in (y, x[:: max(1, len(x) // 1000)])]
        for part in (self.offsets, self.importance, self.index, *some):
            if part is not None:
                digest.update(part.contiguous().cpu().numpy().tobytes())
        if self.tests is not None:
            digest.update(self.tests.fingerprint())
        if self.unseen is not None:
            digest.update(f"unseen {self.unseen.fingerprint()}".encode())
        return digest.hexdigest()[:16]

    def all_targets(self) -> list[tuple[str, Tensor]]:
        """Return the targets of the training samples and of each kind of test samples there is, with its name."""
        found = [("training", self.y if self.index is None else self.y[self.index])]
        found += [] if self.test is None else [("test", self.test[1])]
        found += [] if self.tests is None else [("client test", self.tests.targets)]
        return found if self.unseen is None else found + self.unseen.all_targets()

    def label(self, i: int) -> str:
        """Return the number and, if it has one, the name of client i, for messages."""
        return f"{i} ({self.names[i]!r})" if self.names is not None else str(i)

    def client(self, i: int | str) -> tuple[Any, Tensor]:
        """Return the stored inputs and targets of a client, given by number or name.

        Several inputs per sample are a dictionary of tensors.

        Raises:
            IndexError: If there is no client i.
            KeyError: If there is no client of that name.
        """
        x, y = self.stored(i)
        return (x if self.layout is None else self.layout.unpack(x)), y

    def stored(self, i: int | str) -> Arrays:
        """Return the rows of x and y of a client, as `client` but with several inputs in one row."""
        i = client_number(i, len(self), self.names)
        span = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
        where: Any = span if self.index is None else self.index[span]
        return self.x[where], self.y[where]
