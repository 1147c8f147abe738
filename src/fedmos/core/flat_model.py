"""A module as a function of one flat vector of parameters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..algorithm import Layers
from ..kernels.attention import in_transform
from ..kernels.client_axis import is_vectorised
from ..kernels.convolution_ops import channels_last
from ..kernels.layers import replace_layers
from ..rng import fold
from .batch_norm import RunningStatistics
from .cohort_recurrence import CohortRecurrence
from .cohort_tensors import CohortTensors
from .constant_reads import ConstantReads
from .dropout import SampleAxis, replace_dropout
from .embeddings import prepare_embeddings
from .frozen_parameters import Copies, private_copy, trainable_parameters
from .functional_dropout import FunctionalDropout
from .image_layout import takes_channels_last
from .input_layout import InputLayout
from .load_flat import load_flat
from .model_outputs import OutputFunction, pick_output
from .module_copy import copied
from .module_hash import attribute_key, constants_key, modules_key
from .module_kind import UnsuitableModel, check_batch_norm, plain_module
from .precision import Precision
from .recurrent import without_layout_warning
from .training_flags import TrainingFlags


class ForwardTrace(NamedTuple):
    """A forward pass without dropout, and the tensors that dropout would have been applied to."""

    outputs: Tensor
    layers: dict[str, list[Tensor]]
    """By the name of the layer's key, the inputs of all its calls."""
    functional: list[Tensor]
    assigned: set[int]
    """The addresses of tensors whose `.data` was replaced."""


class FlatModel:
    """A private copy of a module that takes its trainable parameters as a vector of `size` numbers.

    The parameters are in the order of `named_parameters()`. Buffers and frozen parameters belong to
    the copy: they are neither trained nor sent.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        precision: Precision = None,
        outputs: OutputFunction | None = None,
        layout: InputLayout | None = None,
        copies: Copies | None = None,
        client_statistics: bool = False,
        personal: Sequence[str] = (),
        shares: bool = False,
    ) -> None:
        """Make the copy, in training mode.

        Args:
            model: The module, whose submodules in `.eval()` stay in evaluation mode.
            device: The device of the copy.
            dtype: The dtype of the parameters and outputs.
            precision: The precision of products.
            outputs: Takes the tensor of outputs from what the module returns; by default as `pick_output`.
            layout: The inputs of a module that takes several, as keyword arguments.
            copies: Frozen parameters on the device, which the copies of several runs share.
            client_statistics: Whether clients keep running statistics of BatchNorm layers; otherwise such layers are
                refused in training mode.
            personal: Names of trainable parameters that every client keeps for itself. They are no part of the vector,
                but may follow it; where they do not, they have the values of the module.
            shares: Whether the copy shares the memory of the module's parameters, which nothing may change then.
        """
        model = plain_module(model)
        trainable = [(name, p) for name, p in trainable_parameters(model) if name not in personal]
        own = [(name, p) for name, p in model.named_parameters() if name in personal]
        self.original, self.layout = model, layout
        """The module that was given, and its inputs."""
        if layout is not None:
            layout.check(model)
        self.module = private_copy(model, device, dtype, copies, shares)
        prepare_embeddings(self.module)
        self._dropout = replace_dropout(self.module)
        self._flags, self.output_function = TrainingFlags(self.module), outputs
        self.training_mode()
        self.statistics = RunningStatistics(self.module)
        self.has_client_statistics = client_statistics and self.statistics.replace_layers()
        """Whether BatchNorm layers normalise with the statistics of a client's batch, padding left out."""
        of_batch = check_batch_norm(self.module, client_statistics)
        self.mixes_samples = self.has_client_statistics or of_batch
        """Whether the output of a sample depends on the other samples of its batch."""
        self.mixes_in_evaluation = of_batch
        """Whether it does so in evaluation mode, too."""
        self.mixes_padding = of_batch and not client_statistics
        """Whether it depends on padding."""
        self.least_batch = 1
        """The smallest batch that the module can be trained on: one sample may not have enough numbers per channel."""
        self.functional_positions: dict[int, SampleAxis] | None = None
        """Where the samples are in each call of functional dropout; None if the module calls none."""
        self.has_cohort_functions = False
        """Whether the module calls functions, such as attention, that are replaced when it is vectorised."""
        self.slow_operations: list[str] = []
        """Operations that a vectorised program computes client by client."""
        self._reads: dict[object, ConstantReads] = {}
        self._tensors = CohortTensors()
        self._changes_inputs, self._copies_pairs = False, False
        replace_layers(self.module, device, dtype, precision)
        self.has_frozen = any(not p.requires_grad for p in self.module.parameters())
        """Whether the module has parameters that are not trained."""
        self.recurrent = any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in self.module.modules())
        """Whether the module has recurrent layers or cells."""
        self._places = [_places(self.module, name) for name, _ in trainable]
        self.layers = Layers({name: p.shape for name, p in trainable})
        self._shapes = [p.shape for _, p in trainable]
        self._sizes = [p.numel() for _, p in trainable]
        self.size = sum(self._sizes)
        self._set_personal(own)
        self.device, self.dtype, self.precision = device, dtype, precision
        self._takes_channels_last: bool | None = None

    def _set_personal(self, own: list[tuple[str, nn.Parameter]]) -> None:
        """Note the parameters that clients keep; in the copy, they are constants."""
        self.personal_layers = Layers({name: p.shape for name, p in own})
        self._personal_places = [_places(self.module, name) for name, _ in own]
        for name, _ in own:
            self.module.get_parameter(name).requires_grad_(False)
        if own and self.statistics.size == self.personal_layers.size:
            raise UnsuitableModel(
                f"Cannot keep {', '.join(self.personal_layers)} with the clients because they are as many numbers as "
                "the statistics of the BatchNorm layers, and vectors of both could not be told apart; use another "
                "choice in personal="
            )

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters of the copy whose values a call replaces."""
        return [self.module.get_parameter(places[0]) for places in self._places]

    @property
    def has_dropout(self) -> bool:
        return bool(self._dropout) or self.functional_positions is not None

    @property
    def least_rows(self) -> int:
        """The number of samples of the smallest batch that every model takes: statistics of a batch need two."""
        return 2 if self.mixes_samples else 1

    def training_mode(self) -> None:
        """Put the copy in training mode; submodules that the user put in `.eval()` stay in evaluation mode."""
        self._flags.train()
        self.training = True

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Put the copy in evaluation mode within the context."""
        was_training = self.training
        self._flags.evaluate()
        self.training = False
        try:
            yield
        finally:
            if was_training:
                self.training_mode()

    def fingerprint(self) -> str:
        """Return a hash of the module's layers and of the names and shapes, but not the values, of its parameters."""
        text = repr([(places[0], tuple(shape)) for places, shape in zip(self._places, self._shapes, strict=True)])
        text += re.sub(r"0x[0-9a-f]+", "", repr(self.original))
        text += f"in evaluation mode: {self._flags.frozen}" if self._flags.frozen else ""
        text += f"personal: {dict(self.personal_layers)}" if self.personal_layers else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def structure(self, here: bool) -> str:
        """Return a hash that is equal for models that compute the same function of their trainable parameters.

        Args:
            here: Whether hashes are compared within this process. If so, classes of modules and attributes that are
                neither numbers nor strings (functions, for example) are compared by identity, otherwise by name.
        """
        digest = hashlib.sha256(self.fingerprint().encode())
        digest.update(modules_key(self.module, here))
        if self.layout is not None:
            digest.update(repr(self.layout).encode())
        if self.output_function is not None:
            digest.update(attribute_key(self.output_function, here).encode())
        digest.update(self._constants.encode())
        return digest.hexdigest()

    @cached_property
    def _constants(self) -> str:
        return constants_key(self.module, {place for places in self._places for place in places})

    def initial(self) -> Tensor:
        """Return the initial parameters of the module as a vector."""
        return torch.cat([self.module.get_parameter(places[0]).detach().reshape(-1) for places in self._places])

    def initial_personal(self) -> Tensor:
        """Return the initial values of the parameters that clients keep, as a vector."""
        parts = [self.module.get_parameter(places[0]).detach().reshape(-1) for places in self._personal_places]
        return torch.cat(parts) if parts else self.initial()[:0]

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """Split the last axis of y into parameters: the shared ones and, where they follow, those of a client.

        The statistics of BatchNorm layers may follow as the last part.
        """
        sizes, rest = list(self._sizes), y.shape[-1] - self.size
        personal, statistics = self.personal_layers, self.statistics.size
        if personal and rest in (personal.size, personal.size + statistics):
            sizes += [layer.slice.stop - layer.slice.start for layer in personal.values()]
            rest -= personal.size
        if statistics and rest == statistics:
            sizes.append(statistics)
        parts: tuple[Tensor, ...] = y.split(sizes, dim=-1)
        return parts

    def _named_parts(self, own: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Return the parameters of a split vector by the places that hold them, and what follows them."""
        places, shapes, personal = self._places, self._shapes, self.personal_layers
        rest = own[len(shapes) :]
        if personal and len(rest) >= len(personal) and rest[0].shape[-1] == next(iter(personal.values())).slice.stop:
            places = places + self._personal_places
            shapes = shapes + [torch.Size(layer.shape) for layer in personal.values()]
        parts = zip(places, own, shapes, strict=False)
        values = {place: self._shaped(v, shape) for names, v, shape in parts for place in names}
        return values, own[len(shapes) :]

    def __call__(self, y: Tensor | tuple[Tensor, ...], inputs: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the module's output.

        Args:
            y: The parameters, as a vector or split by `split`. Running statistics of BatchNorm layers may follow; by
                default they are those of the module.
            inputs: A batch of inputs.
            keys: One key per sample for dropout.
        """
        own = self.split(y) if isinstance(y, Tensor) else y
        try:
            if in_transform():
                like = own[0] if is_vectorised(own[0]) else inputs
                return self._tensors.retried(lambda context: self._forward(own, inputs, keys, context), like)
            version = inputs._version
            outputs = self._forward(own, inputs, keys, nullcontext())
            self._changes_inputs |= inputs._version != version
            return outputs
        except RuntimeError as error:
            # torch.view_as_complex takes pairs of numbers at even addresses only.
            if self._copies_pairs or "divisible by 2" not in str(error):
                raise
            self._copies_pairs = True
            return self(own, inputs, keys)

    def _forward(
        self, own: tuple[Tensor, ...], inputs: Tensor, keys: Tensor | None, tensors: AbstractContextManager[Any]
    ) -> Tensor:
        """Return the module's output with the parameters `own`, computed within the context `tensors`."""
        values, rest = self._named_parts(own)
        self.statistics.forget_batches()
        for statistics in rest:
            values |= self.statistics.buffers(statistics)
        if self._changes_inputs:
            inputs = inputs.clone()
        if keys is not None:
            for number, (name, layer) in enumerate(self._dropout.items()):
                values[name] = fold(keys, number)
                layer.calls = 0
        vectorised = self.recurrent and (is_vectorised(own[0]) or is_vectorised(inputs))
        replaced = self._replaced_functions(own, inputs, keys)
        with self._autocast(), self._recurrence(vectorised), tensors, replaced:
            if self.layout is None:
                returned = functional_call(self.module, values, (inputs,), tie_weights=False)
            else:
                named = self.layout.unpack(inputs, self.dtype)
                returned = functional_call(self.module, values, (), named, tie_weights=False)
        return pick_output(returned, self.output_function).to(self.dtype)

    def _recurrence(self, vectorised: bool) -> AbstractContextManager[Any]:
        if vectorised:
            return CohortRecurrence()
        return without_layout_warning() if self.recurrent and self.device.type == "cuda" else nullcontext()

    def _shaped(self, v: Tensor, shape: torch.Size) -> Tensor:
        v = v.view(shape)
        return v.clone(memory_format=torch.contiguous_format) if self._copies_pairs and shape[-1:] == (2,) else v

    def with_statistics(
        self,
        y: Tensor | tuple[Tensor, ...],
        statistics: Tensor,
        inputs: Tensor,
        share: Tensor | None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the module's output in training mode, and the running statistics after the batch.

        Args:
            y: The parameters, as a vector or split by `split`.
            statistics: The running statistics before the batch.
            inputs: A batch of inputs.
            share: The share of each sample in the statistics of the batch, zero for padding; None without padding.
            keys: One key per sample for dropout.
        """
        own = self.split(y) if isinstance(y, Tensor) else y
        with self.statistics.observed(share):
            outputs = self((*own, statistics), inputs, keys)
            return outputs, self.statistics.updated(statistics)

    def _replaced_functions(
        self, own: tuple[Tensor, ...], inputs: Tensor, keys: Tensor | None
    ) -> AbstractContextManager[Any]:
        """Return the context in which dropout has masks from `keys` and attention is that of a cohort, if needed."""
        cohort = self.has_cohort_functions and in_transform()
        reads = None
        if cohort and is_vectorised(own[0]) and is_vectorised(inputs):
            reads = self._reads.setdefault((tuple(inputs.shape), self.training), ConstantReads()).begin()
        if keys is not None and self.functional_positions is not None:
            return FunctionalDropout(fold(keys, len(self._dropout)), self.functional_positions, reads=reads)
        return FunctionalDropout(None, {}, reads=reads) if cohort else nullcontext()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)

    def trace(self, y: Tensor | tuple[Tensor, ...], inputs: Tensor) -> ForwardTrace:
        """Compute the outputs without dropout, and record the tensors that dropout would be applied to."""
        functional: list[Tensor] = []
        for layer in self._dropout.values():
            layer.recorded = []
        try:
            with FunctionalDropout(None, {}, functional) as mode:
                outputs = self(y, inputs)
            self.has_cohort_functions |= mode.needed_by_cohorts
            self._tensors.needed |= mode.replaced_in_cohorts
            self._copies_pairs |= mode.views_complex
            layers = {name: layer.recorded or [] for name, layer in self._dropout.items()}
            return ForwardTrace(outputs, layers, functional, mode.assigned)
        finally:
            for layer in self._dropout.values():
                layer.recorded = None

    def place_dropout(self, layers: dict[str, dict[int, SampleAxis]], functional: dict[int, SampleAxis]) -> None:
        """Set where the samples are in the calls of each dropout layer and of functional dropout."""
        for name, positions in layers.items():
            self._dropout[name].positions = positions
        self.functional_positions = functional or None

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Return images channels last, if the module takes them so, for calls outside `vmap`."""
        if inputs.ndim != 4 or self.device.type != "cpu" or self.dtype != torch.float32:
            return inputs
        if self._takes_channels_last is None:
            with self.evaluation_mode():
                some = inputs[: self.least_rows]
                self._takes_channels_last = takes_channels_last(self.module, self, self.initial(), some)
        return channels_last(inputs) if self._takes_channels_last else inputs

    def module_with(self, y: Tensor) -> nn.Module:
        """Return a copy of the original module, on the CPU, with the parameters y."""
        module = copied(self.original, "cpu", self.dtype)
        load_flat(module, y, list(self.personal_layers))
        return module


def _places(module: nn.Module, name: str) -> list[str]:
    """Return the paths of all attributes that hold the parameter, once each.

    `functional_call` can tie weights itself, but then a module that is reachable by two names keeps the
    substituted tensor.
    """
    parameter = module.get_parameter(name)
    places: dict[tuple[int, str], str] = {}
    for alias, other in module.named_parameters(remove_duplicate=False):
        if other is parameter:
            owner, _, attribute = alias.rpartition(".")
            places.setdefault((id(module.get_submodule(owner)), attribute), alias)
    return list(places.values())
