"""BatchNorm layers whose running statistics belong to a client.

In training, `nn.BatchNorm` changes its buffers. In the copy of the model that a run trains, each such layer is replaced
with one that takes its running statistics as an argument and returns the new ones, so that clients that train side by
side have their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.batch_norm import normalise
from .module_kind import UnsuitableModel
from .statistics_layout import BatchNorm, LayerPlace, StatisticsLayout, batch_norms


class RunningStatistics(StatisticsLayout):
    """The running statistics of a module, which clients that train side by side can have of their own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._replaced: list[ClientBatchNorm] = []
        self._noting: list[ClientBatchNorm] = []
        """The replaced layers whose statistics are updated."""
        self._update: _BatchUpdate | None = None

    def replace_layers(self) -> bool:
        """Replace the layers that normalise with the statistics of a batch, in the mode in which they are trained.

        Returns:
            Whether there are any.

        Raises:
            UnsuitableModel: If a layer has a forward pass of its own.
        """
        for name, layer in batch_norms(self._module).items():
            if not layer.training and layer.running_mean is not None:
                continue
            if type(layer).forward not in (BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise UnsuitableModel(
                    f"Cannot keep the statistics of '{name}' with the client because {type(layer).__name__} defines "
                    "its own forward pass; use a BatchNorm of torch.nn, or batchnorm='group'"
                )
            layer.__class__ = _client_class(type(layer))  # type: ignore[arg-type]  # a class is hashable
            assert isinstance(layer, ClientBatchNorm)
            self._replaced.append(layer)
        self._noting = [
            layer for layer in self._replaced if layer.running_mean is not None and layer.track_running_stats
        ]
        if self._noting:
            self._update = _BatchUpdate([(self._layer(place), place) for place in self._places], self.initial())
        return bool(self._replaced)

    @contextmanager
    def observed(self, share: Tensor | None) -> Iterator[None]:
        """Have the layers note new statistics within the context.

        Args:
            share: The weight of each sample in the mean of a batch, (B,), which is zero for padding; None for batches
                without padding.
        """
        for layer in self._replaced:
            layer._share, layer._noted = share, []
        try:
            yield
        finally:
            for layer in self._replaced:
                layer._share = layer._noted = None

    def forget_batches(self) -> None:
        """Forget what layers have noted, before a forward pass that may be a repetition."""
        for layer in self._replaced:
            if layer._noted:
                layer._noted = []

    def updated(self, statistics: Tensor) -> Tensor:
        """Return the statistics after the forward pass that was observed.

        Args:
            statistics: Those before it, as given to the forward pass.
        """
        if not self._places:
            return statistics
        if self._update is None or any(len(layer._noted or ()) != 1 for layer in self._noting):
            return torch.cat([self._updated_layer(place, statistics) for place in self._places])
        # Every layer was called once, as is usual: all of them in a few operations on the whole vector.
        parts: list[Tensor] = []
        for place in self._places:
            layer, end = self._layer(place), place.start + 2 * place.channels
            if isinstance(layer, ClientBatchNorm) and layer._noted:
                parts += [layer._noted[0].mean, layer._noted[0].var, statistics[end : end + 1]]
            else:
                parts.append(statistics[place.start : end + 1])
        return self._update(statistics, torch.cat(parts))

    def _updated_layer(self, place: LayerPlace, statistics: Tensor) -> Tensor:
        """Return the statistics of one layer after any number of batches."""
        start, channels = place.start, place.channels
        mean, var, count = statistics[start : start + 2 * channels + 1].split([channels, channels, 1])
        layer = self._layer(place)
        for batch in (layer._noted or ()) if isinstance(layer, ClientBatchNorm) else ():
            count = count + 1
            factor = 1 / count if layer.momentum is None else layer.momentum
            mean = (1 - factor) * mean + factor * batch.mean
            var = (1 - factor) * var + factor * batch.var
        return torch.cat([mean, var, count])


class _BatchUpdate:
    """The update of the statistics of all layers by the moments of one batch, as operations on the whole vector."""

    def __init__(self, layers: list[tuple[BatchNorm, LayerPlace]], like: Tensor) -> None:
        factor, count = torch.zeros((2, len(like)), dtype=torch.float64)
        number, cumulative = torch.zeros(len(like), dtype=torch.int64), torch.zeros(len(like), dtype=torch.bool)
        for layer, (_, start, channels) in layers:
            end = start + 2 * channels
            if not isinstance(layer, ClientBatchNorm) or not layer.track_running_stats:
                continue
            factor[start:end] = 0.0 if layer.momentum is None else layer.momentum
            cumulative[start:end] = layer.momentum is None
            count[end], number[start:end] = 1, end
        self._factor, self._count = factor.to(like), count.to(like)
        self._cumulative = cumulative.to(like.device) if bool(cumulative.any()) else None
        self._number = number.to(like.device)
        """Where the number of batches of each entry's layer is."""

    def __call__(self, statistics: Tensor, batch: Tensor) -> Tensor:
        """Return the new statistics; entries of layers without a batch are equal in both vectors and stay."""
        counted, factor = statistics + self._count, self._factor
        if self._cumulative is not None:
            factor = torch.where(self._cumulative, 1 / counted[self._number], factor)
        return torch.lerp(counted, batch + self._count, factor)


class _BatchMoments(NamedTuple):
    """What running statistics are updated with."""

    mean: Tensor
    var: Tensor
    """Divided by n − 1."""


class ClientBatchNorm(BatchNorm):
    """A BatchNorm layer that leaves its buffers as they are, and notes the moments of each batch instead."""

    _share: Tensor | None = None
    _noted: list[_BatchMoments] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        if self._share is None:
            return self._of_batch(x)
        return self._of_samples(x, self._share)

    def _of_batch(self, x: Tensor) -> Tensor:
        """Normalise by PyTorch's function, with the moments of all samples."""
        if not self._notes:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        like = self.running_mean
        assert like is not None
        mean, var = torch.zeros_like(like), torch.zeros_like(like)  # a momentum of 1 makes them those of the batch
        out = F.batch_norm(x, mean, var, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
        self._note(mean, var)
        return out

    def _of_samples(self, x: Tensor, share: Tensor) -> Tensor:
        """Normalise with the moments of the samples that have a share in them."""
        given, shape = x.dtype, x.shape
        x = (x.flatten(2) if x.ndim > 2 else x.unsqueeze(2)).to(share.dtype)
        share = _row_shares(share, len(x))
        scale = x.new_ones(shape[1]) if self.weight is None else self.weight
        shift = x.new_zeros(shape[1]) if self.bias is None else self.bias
        out, mean, var = normalise(x, share, scale, shift, self.eps)
        if self._notes:
            n = x.shape[2] / share[0]  # the first sample always counts, as 1/size
            self._note(mean, var * (n / (n - 1)))
        return out.view(shape).to(given)

    @property
    def _notes(self) -> bool:
        """Whether the moments of the batch update running statistics."""
        return self._noted is not None and self.running_mean is not None and self.track_running_stats

    def _note(self, mean: Tensor, var: Tensor) -> None:
        assert self._noted is not None
        self._noted.append(_BatchMoments(mean.detach(), var.detach()))


def _row_shares(share: Tensor, rows: int) -> Tensor:
    """Return the share of each row; samples may have several adjacent rows.

    Rows that are divided among samples in another way have equal shares. The trial of the model finds that padding then
    has an influence.
    """
    each, rest = divmod(rows, len(share))
    if rest:
        return torch.full((rows,), 1 / rows, dtype=share.dtype, device=share.device)
    return share if each == 1 else (share / each).repeat_interleave(each)


@cache
def _client_class(kind: type[BatchNorm]) -> type[BatchNorm]:
    """Return the replacement for a class of layers; it keeps the check of the inputs."""
    return type(f"Client{kind.__name__}", (ClientBatchNorm, kind), {"__module__": __name__})
