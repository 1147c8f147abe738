"""Which models take images channels last, the fastest layout for convolutions on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..kernels.convolution_ops import channels_last


class _ConstantNorms(TorchFunctionMode):
    """Finds group normalisation of tensors that need no gradient.

    PyTorch 2.13 ends the process in the backward pass of such a layer, if the tensor is stored channels last.
    """

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.group_norm, torch.group_norm):
            self.found = self.found or not args[0].requires_grad
        return func(*args, **kwargs or {})


def takes_channels_last(module: nn.Module, call: Callable[[Tensor, Tensor], Tensor], x: Tensor, inputs: Tensor) -> bool:
    """Whether a model has the same outputs for images in that layout, and can be trained with them.

    Some modules fail: `view` after a convolution needs the default layout.

    Args:
        module: The module.
        call: Computes the outputs of the module for parameters and inputs.
        x: The parameters.
        inputs: A few images.
    """
    if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return False
    try:
        with torch.no_grad():
            same = torch.allclose(call(x, inputs), call(x, channels_last(inputs)), rtol=1e-3, atol=1e-4)
        with torch.enable_grad(), _ConstantNorms() as norms:
            call(x.detach().requires_grad_(), inputs)
    except RuntimeError:
        return False
    return same and not norms.found
