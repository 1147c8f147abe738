"""Composition of an algorithm with BatchNorm layers whose state stays with the clients (SiloBN, FedBN)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from ..algorithm import Algorithm, ClientContext, Context, Field, Gradient, Reduce, Vectors
from ..core.composition import recast, subclass
from ..core.method_checks import check_pair
from ..core.statistics_layout import AFFINE, CLIENT_MODES, STATISTICS, BatchNormMode, StatisticsLayout, affine_slices


@dataclass(frozen=True)
class ClientBatchNormState:
    """What a client keeps of the BatchNorm layers of a model."""

    statistics: tuple[float, ...]
    """The running statistics of a client that has not taken part; empty if the layers have none."""
    affine: tuple[int, ...]
    """The coordinates of the scales and shifts that clients keep; empty if they are shared."""
    _index: dict[torch.device, Tensor] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, model: nn.Module, mode: BatchNormMode, personal: Sequence[str] = ()) -> ClientBatchNormState:
        """Return what clients keep of this model."""
        initial = StatisticsLayout(model).initial().to(torch.float64).tolist()
        kept = affine_slices(model, personal) if mode == "local-affine" else []
        return cls(tuple(initial), tuple(i for part in kept for i in range(part.start, part.stop)))

    @property
    def fields(self) -> list[tuple[str, tuple[int, ...]]]:
        """The declaration of the state."""
        sizes = {STATISTICS: len(self.statistics), AFFINE: len(self.affine)}
        return [(name, (size,)) for name, size in sizes.items() if size]

    def take(self, y: Tensor) -> Tensor:
        """Return the scales and shifts of a model, (…, a)."""
        return y.index_select(-1, self._index_on(y.device))

    def put(self, y: Tensor, affine: Tensor) -> Tensor:
        """Return a model with these scales and shifts, (…, D)."""
        rows = y.expand(*affine.shape[:-1], y.shape[-1])
        return rows.index_copy(-1, self._index_on(y.device), affine)

    def _index_on(self, device: torch.device) -> Tensor:
        if device not in self._index:
            self._index[device] = torch.tensor(self.affine, device=device)
        return self._index[device]


def with_batch_norm(
    algorithm: Algorithm, model: nn.Module, mode: BatchNormMode | None, personal: Sequence[str] = ()
) -> Algorithm:
    """Return the algorithm with clients that keep running statistics and, for "local-affine", scales and shifts.

    The result has the class name and the fields of the algorithm, and also declares this state. Clients upload it, too,
    and the server keeps its average over the cohort for evaluation. An algorithm is returned unchanged for other modes
    and for a model without such state.

    Args:
        algorithm: The algorithm.
        model: The model, with the state of clients that have not taken part.
        mode: The option `batchnorm`.
        personal: Names of parameters that clients keep anyway, and do not upload.

    Raises:
        ValueError: If clients shall keep scales and shifts but do not receive x.
    """
    if mode is None or mode not in CLIENT_MODES:
        return algorithm
    state = ClientBatchNormState.of(model, mode, personal)
    if not state.fields:
        return algorithm
    kind = type(algorithm)
    if state.affine and "x" not in algorithm.down:
        raise ValueError(
            f"Cannot use batchnorm='local-affine' with {kind.__name__} because its clients do not receive the model x "
            "in which they put their own scales and shifts; use batchnorm='local'"
        )
    return recast(algorithm, _composed_class(kind, state))  # type: ignore[arg-type]  # a class is hashable


@cache
def _composed_class(kind: type[Algorithm], state: ClientBatchNormState) -> type[Algorithm]:
    """Return a subclass of `kind` with this state: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _WithBatchNorm, _batch_norm=state, _batch_norm_base=kind)


class _TrackingGradient(Protocol):
    """The part of the engine's gradients that updates running statistics."""

    def track(self, statistics: Tensor) -> None:
        """Have the first gradient of each step update these statistics."""

    @property
    def statistics(self) -> Tensor:
        """The statistics after the last update."""


class _WithBatchNorm(Algorithm):
    """The methods and declarations in which an algorithm with local BatchNorm differs from the algorithm alone."""

    _batch_norm: ClassVar[ClientBatchNormState]
    _batch_norm_base: ClassVar[type[Algorithm]]
    """The class of the algorithm alone."""

    @property
    def client_state(self) -> Sequence[Field]:
        return (*self._alone().client_state, *self._batch_norm.fields)

    @property
    def server_state(self) -> Sequence[Field]:
        return (*self._alone().server_state, *self._batch_norm.fields)

    @property
    def down(self) -> Sequence[Field]:
        return self._alone().down

    @property
    def up(self) -> Sequence[Field]:
        return (*self._alone().up, *self._batch_norm.fields)

    @property
    def reduce(self) -> Reduce:
        return {**self._alone().reduce, **{name: (name, "avg") for name, _ in self._batch_norm.fields}}

    def init(self, x: Tensor) -> Vectors:
        given = super().init(x)
        if self._batch_norm.statistics:
            given = given | {STATISTICS: torch.tensor(self._batch_norm.statistics, dtype=x.dtype, device=x.device)}
        return given | ({AFFINE: self._batch_norm.take(x)} if self._batch_norm.affine else {})

    def received(self, x: Tensor, own: Vectors) -> Tensor:
        x = super().received(x, own)
        return self._batch_norm.put(x, own[AFFINE]) if self._batch_norm.affine else x

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        if self._batch_norm.statistics:
            cast(_TrackingGradient, grad).track(c.own[STATISTICS])
        return super().begin(y, c, grad)

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        got: Any = super().finish(y, s, c, grad)
        check_pair(self, "finish", got)
        uploads, own = got
        if not isinstance(uploads, dict):
            return got  # type: ignore[no-any-return]  # the engine refuses it
        kept = {STATISTICS: cast(_TrackingGradient, grad).statistics} if self._batch_norm.statistics else {}
        kept |= {AFFINE: self._batch_norm.take(y)} if self._batch_norm.affine else {}
        return uploads | kept, own | kept

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        got: Any = super().server(x, state, agg, ctx)
        check_pair(self, "server", got)
        x, new = got
        averages = {name: agg[name] for name, _ in self._batch_norm.fields}
        return self._with_average(x, averages), new | averages

    def evaluated(self, x: Tensor, state: Vectors, ctx: Context) -> Tensor:
        model = super().evaluated(x, state, ctx)
        return model if model is x else self._with_average(model, state)

    def personal(self, c: ClientContext) -> Tensor | None:
        own = super().personal(c)
        return self.received(c.x, c.own) if own is None else own

    def _with_average(self, x: Tensor, state: Vectors) -> Tensor:
        """Return a model of the server with the average of the clients' scales and shifts."""
        return self._batch_norm.put(x, state[AFFINE]) if self._batch_norm.affine else x

    def _alone(self) -> Algorithm:
        """Return the algorithm alone. Its declarations may depend on each other."""
        return recast(self, self._batch_norm_base)
