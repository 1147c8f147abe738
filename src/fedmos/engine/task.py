"""The fixed part of a run: model, data, loss, and the division of local training into steps."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.flat_model import FlatModel
from ..core.frozen_parameters import Copies
from ..core.function_state import model_functions
from ..core.losses import Loss
from ..data.federated import FederatedData
from ..rng import Purpose, stream
from .program import Program

_KEPT_AT_ONCE = 2**29
"""Bytes on a CPU. More is not faster, and malloc keeps at most 2 GiB of freed memory."""


@dataclass(frozen=True, kw_only=True)
class Task:
    model: FlatModel
    data: FederatedData
    loss: Loss
    seed: int
    local_steps: int | None
    local_epochs: int | None
    batch_size: int | None
    weight_decay: float = 0.0
    clip: float | None = None
    sam_radius: float = 0.0
    """ρ of sharpness-aware gradients, g(y + ρ g/‖g‖); 0 for plain ones."""
    compiled: bool = False
    """Whether the cohort's program is compiled."""
    origin: tuple[Tensor, Tensor] | None = None
    """For merged runs: the seed of each client's run, and the client's number in it."""

    @cached_property
    def program(self) -> Program:
        return Program(self.model, self.loss, self.weight_decay, self.compiled, self.clip)

    @property
    def own_functions(self) -> list[Any]:
        """The functions of the loss and of the model, which may read more than their arguments."""
        return [self.loss.computed, self.model.output_function, *model_functions(self.model.module)]

    def stream(self, t: int | Tensor, ids: Tensor, purpose: Purpose) -> Tensor:
        """Return the random streams of clients `ids` in round t, on the run's device."""
        if self.origin is None:
            return stream(self.seed, t, ids, purpose, ids.device)
        seeds, numbers = (v.to(ids.device) for v in self.origin)
        return stream(seeds[ids], t, numbers[ids], purpose, ids.device)

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The start of each client's data, its number of samples, and its importance, on the run's device."""
        data, device = self.data, self.model.device
        return data.offsets[:-1].to(device), data.sizes.to(device), data.importance.to(device)

    @cached_property
    def most_samples(self) -> int:
        return int(self.data.sizes.max())

    @cached_property
    def equal_batches(self) -> bool:
        """Whether all batches of all clients have the same size."""
        n, B = int(self.data.sizes[0]), self.batch_size
        divided = B is None or self.local_steps is not None or n <= B or n % B == 0
        return divided and bool((self.data.sizes == n).all())

    @cached_property
    def largest_batch(self) -> int:
        """The size of the largest batch of any client."""
        return min(self.batch_size or self.most_samples, self.most_samples)

    @cached_property
    def smallest_batches(self) -> Tensor:
        """The size of each client's smallest batch."""
        n, B = self.data.sizes, self.batch_size
        return n if B is None else n.clamp(max=B) if self.local_steps is not None else (n - 1) % B + 1

    @cached_property
    def most_steps(self) -> int:
        """The largest K_i of the federation."""
        return int(self.steps(self.data.sizes.max()))

    @cached_property
    def least_steps(self) -> int:
        """The smallest K_i of the federation."""
        return int(self.steps(self.data.sizes.min()))

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes that autograd saves per sample between the forward and the backward pass."""
        some = min(8, int(self.data.offsets[-1]))
        few = some // 2 if some // 2 >= self.model.least_batch else 0
        saved = [self._saved_bytes(n) for n in (few, some)]  # the difference excludes constant parts
        return max(1, (saved[1] - saved[0]) // (some - few))

    def _saved_bytes(self, samples: int) -> int:
        total = 0

        def pack(v: Tensor) -> Tensor:
            nonlocal total
            total += v.nbytes
            return v

        if samples > 0:
            try:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda v: v):
                    self.trial(samples)
            except RuntimeError as error:
                if "saved tensor hooks" not in str(error):  # a model that calls torch.func.grad supports none
                    raise
                with _ResultBytes() as mode:
                    self.trial(samples)
                return int(mode.total)
        return total

    def trial(self, samples: int) -> Tensor:
        """Return the loss on the first samples of the federation, with its autograd graph."""
        numbers = torch.arange(samples, device=self.model.device)
        inputs, targets = self.samples(numbers)
        self.model.training_mode()
        with torch.enable_grad():
            y = self.model.initial().requires_grad_()
            return self.loss.mean(self.model(y, inputs, numbers if self.model.has_dropout else None), targets)

    @cached_property
    def samples_at_once(self) -> int:
        """The number of samples per part of a gradient over more than a batch."""
        device = self.model.device
        budget = _KEPT_AT_ONCE if device.type == "cpu" else total_memory(device) // 20
        return max(1, budget // self.sample_bytes)

    def steps(self, n: Tensor) -> Tensor:
        """Return K_i of clients with n samples."""
        if self.local_steps is not None:
            return torch.full_like(n, self.local_steps)
        assert self.local_epochs is not None
        per_epoch = torch.ones_like(n) if self.batch_size is None else -(n // -self.batch_size)
        return self.local_epochs * per_epoch

    def samples(self, entries: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets at entries (any shape) of the federation's index, ready for the model.

        With `keys`, one per entry, inputs are augmented as in training.
        """
        where = self._stored_at(entries)
        return self.inputs(_rows_at(self.data.x, where), keys), self.targets(_rows_at(self.data.y, where))

    def targets_at(self, entries: Tensor) -> Tensor:
        """Return the targets at entries (any shape) of the federation's index."""
        return self.targets(_rows_at(self.data.y, self._stored_at(entries)))

    def _stored_at(self, entries: Tensor) -> Tensor:
        """Return which stored samples are at entries of the federation's index."""
        return entries if self.data.index is None else _rows_at(self.data.index, entries)

    def inputs(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        # Normalisation expects a single batch axis in front of the channels.
        flat = x.reshape(-1, *self.data.x.shape[1:])
        if keys is not None and self.data.augment is not None:
            flat = self.data.augment(flat, keys.reshape(-1))
        return self.data.inputs(flat, self.model.dtype).view(x.shape)

    def targets(self, y: Tensor) -> Tensor:
        return y.to(self.model.dtype) if y.is_floating_point() else y.to(torch.int64)


def _rows_at(v: Tensor, where: Tensor) -> Tensor:
    """Return v[where]. On a CPU, index_select takes half as long as indexing."""
    if v.device.type != "cpu":
        return v[where]
    return v.index_select(0, where.flatten()).view(*where.shape, *v.shape[1:])


class _ResultBytes(TorchDispatchMode):
    """Counts the bytes of all results of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo, which takes a second; nothing is compiled here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        self.total += sum(v.nbytes for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, Tensor))
        return result


def total_memory(device: torch.device) -> int:
    """Return the device's total memory in bytes, free or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 4 * 2**30


DeviceCache = Copies

_PREPARED = 2**30
"""Bytes. Samples that take no more than this when normalised are normalised once instead of batch by batch."""


def on_device(
    data: FederatedData, device: torch.device, dtype: torch.dtype, device_cache: DeviceCache | None = None
) -> FederatedData:
    """Copy the samples of a federation to `device`; sizes and importances stay on the CPU.

    Samples found in `device_cache` are not copied again. Small data sets are normalised once, here; images that are to
    be augmented stay as they are.
    """
    device_cache = {} if device_cache is None else device_cache
    tests, own = [] if data.test is None else [data.test[0]], data.tests
    tests += [] if own is None or own.x is data.x else [own.x]
    size = sum(v.numel() for v in (data.x, *tests)) * dtype.itemsize
    prepare = data.normalize is not None and data.augment is None and size <= _PREPARED

    def move(v: Tensor, inputs: bool = False) -> Tensor:
        source = (v.data_ptr(), v.shape, v.stride(), v.dtype, device, (data.normalize, dtype) if inputs else None)
        if source not in device_cache:
            device_cache[source] = (v, data.inputs(v.to(device), dtype) if inputs else v.to(device))
        return device_cache[source][1]

    return replace(
        data,
        x=move(data.x, prepare),
        y=move(data.y),
        index=None if data.index is None else data.index.to(device),
        test=None if data.test is None else (move(data.test[0], prepare), move(data.test[1])),
        tests=None if own is None else own.moved(move(own.x, prepare), move(own.y)),
        unseen=None if data.unseen is None else on_device(data.unseen, device, dtype, device_cache),
        normalize=None if prepare else data.normalize,
    )
