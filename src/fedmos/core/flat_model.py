"""A module seen as a function of one flat vector of parameters."""

from __future__ import annotations

import copy
import hashlib
import re

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..kernels.convolution import replace_convolutions
from ..kernels.convolution_ops import channels_last
from ..kernels.pooling import replace_pooling
from ..rng import fold
from .dropout import replace_dropout
from .precision import Precision

_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)


class FlatModel:
    """A private copy of a module whose trainable parameters are handed in as a vector of `size` numbers.

    The order is that of `named_parameters()`. Buffers and frozen parameters stay with the copy:
    they are neither trained nor sent.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype, precision: Precision = None) -> None:
        _refuse_batch_norm(model)
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not trainable:
            raise ValueError("Cannot train the model because it has no trainable parameters")
        self._original = model
        self.module = copy.deepcopy(model).to(device=device, dtype=dtype)
        self._dropout = replace_dropout(self.module)
        if dtype == torch.float32 and (device.type == "cuda" or (device.type == "cpu" and precision is None)):
            replace_convolutions(self.module, precision)
        if device.type == "cuda":
            replace_pooling(self.module)
        self._places = [_places(self.module, name) for name, _ in trainable]
        self._shapes = [p.shape for _, p in trainable]
        self._sizes = [p.numel() for _, p in trainable]
        self.size = sum(self._sizes)
        self.device, self.dtype, self.precision = device, dtype, precision
        self._takes_channels_last: bool | None = None

    @property
    def has_dropout(self) -> bool:
        return bool(self._dropout)

    def fingerprint(self) -> str:
        """The module's layers and the names and shapes of its parameters, hashed; values are in every checkpoint."""
        text = repr([(places[0], tuple(shape)) for places, shape in zip(self._places, self._shapes, strict=True)])
        text += re.sub(r"0x[0-9a-f]+", "", repr(self._original))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def structure(self, here: bool) -> str:
        """A hash that is equal for models that compute the same function of their trainable parameters.

        What a module holds beside numbers and words (functions, say) is told apart by identity if compared `here`, in
        this process, and by name otherwise.
        """
        digest = hashlib.sha256(self.fingerprint().encode())
        for name, module in self.module.named_modules(remove_duplicate=False):
            held = {k: v for k, v in vars(module).items() if k not in _TORCH_OWN and not (k[0] == "_" and not v)}
            plain = sorted((k, _told_apart(v, here)) for k, v in held.items() if k != "calls")
            digest.update(repr((name, type(module).__qualname__, type(module).__module__, plain)).encode())
        trainable = {place for places in self._places for place in places}
        for name, value in (*self.module.named_parameters(), *self.module.named_buffers()):
            if name not in trainable:
                digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def initial(self) -> Tensor:
        """The parameters the module came with."""
        return torch.cat([self.module.get_parameter(places[0]).detach().reshape(-1) for places in self._places])

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """The parameters of each place, along the last axis."""
        parts: tuple[Tensor, ...] = y.split(self._sizes, dim=-1)
        return parts

    def __call__(self, y: Tensor | tuple[Tensor, ...], inputs: Tensor, keys: Tensor | None = None) -> Tensor:
        """The module's output with parameters y, whole or split; `keys`, one per sample, seed its dropout."""
        parts = zip(self._places, self.split(y) if isinstance(y, Tensor) else y, self._shapes, strict=True)
        values = {place: v.view(shape) for places, v, shape in parts for place in places}
        if keys is not None:
            for number, (name, layer) in enumerate(self._dropout.items()):
                values[name] = fold(keys, number)
                layer.calls = 0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
            output: Tensor = functional_call(self.module, values, (inputs,), tie_weights=False)
        return output.to(self.dtype)

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Images as a CPU's convolutions are fastest with them, channels last, if the module takes them so.

        Not every module does: `view` after a convolution wants them as they were. For calls outside `vmap`.
        """
        if inputs.ndim != 4 or self.device.type != "cpu" or self.dtype != torch.float32:
            return inputs
        if self._takes_channels_last is None:
            self._takes_channels_last = self._same_channels_last(inputs[:1])
        return channels_last(inputs) if self._takes_channels_last else inputs

    def _same_channels_last(self, inputs: Tensor) -> bool:
        if not any(isinstance(module, nn.Conv2d) for module in self.module.modules()):
            return False
        was_training, x = self.module.training, self.initial()
        self.module.eval()
        try:
            with torch.no_grad():
                return torch.allclose(self(x, inputs), self(x, channels_last(inputs)), rtol=1e-3, atol=1e-4)
        except RuntimeError:
            return False
        finally:
            self.module.train(was_training)

    def module_with(self, y: Tensor) -> nn.Module:
        """A copy of the caller's module, on the CPU, holding the parameters y."""
        module = copy.deepcopy(self._original).to(device="cpu", dtype=self.dtype)
        load_flat(module, y)
        return module


_TORCH_OWN = {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_is_full_backward_hook",
}


def _told_apart(v: object, here: bool) -> str:
    if isinstance(v, bool | int | float | str | torch.dtype | type(None)):
        return repr(v)
    if isinstance(v, tuple | list):
        return repr([_told_apart(item, here) for item in v])
    name = getattr(v, "__qualname__", type(v).__qualname__)
    return f"{name} {id(v)}" if here else name


def _places(module: nn.Module, name: str) -> list[str]:
    """Every attribute that holds the parameter, once each.

    `functional_call` could tie weights by itself, but leaves a module that is reached by two names with
    the substituted tensor in it.
    """
    parameter = module.get_parameter(name)
    places: dict[tuple[int, str], str] = {}
    for alias, other in module.named_parameters(remove_duplicate=False):
        if other is parameter:
            owner, _, attribute = alias.rpartition(".")
            places.setdefault((id(module.get_submodule(owner)), attribute), alias)
    return list(places.values())


def load_flat(module: nn.Module, y: Tensor) -> None:
    """Write the vector y into the trainable parameters of `module`."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if sum(p.numel() for p in trainable) != y.numel():
        raise ValueError(
            f"Cannot load {y.numel()} parameters because the model has {sum(p.numel() for p in trainable)}; "
            "use the model of the run"
        )
    with torch.no_grad():
        for p, v in zip(trainable, y.split([p.numel() for p in trainable]), strict=True):
            p.copy_(v.view(p.shape))


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_NORM):
            raise ValueError(
                f"Cannot train a model with BatchNorm ('{name}') because its running statistics mix clients' data; "
                "use GroupNorm, or convert the model with fm.models.convert_batchnorm(model)"
            )
