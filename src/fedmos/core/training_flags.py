"""The training mode of each submodule, as the user gave it."""

from __future__ import annotations

import logging

from torch import nn

_log = logging.getLogger("fedmos")


class TrainingFlags:
    """Remembers which submodules of a module train, so that submodules in `.eval()` stay so.

    A module that is in evaluation mode as a whole, as `from_pretrained` returns it, trains as after `.train()`;
    only its BatchNorm layers with running statistics stay in evaluation mode.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.named_modules())
        if not any(m.training for _, m in modules):
            frozen = {id(m) for _, m in modules if _has_statistics(m)}
            if frozen:
                _log.info("The BatchNorm layers of the model stay in evaluation mode, in which the model was given")
        else:
            frozen = {id(m) for _, m in modules if not m.training}
        self._flags = [(m, id(m) not in frozen) for _, m in modules]
        self.frozen = [name for name, m in modules if id(m) in frozen]
        """The names of the submodules that stay in evaluation mode in training."""

    def train(self) -> None:
        """Put every submodule in the mode in which it trains."""
        for module, training in self._flags:
            module.training = training

    def evaluate(self) -> None:
        """Put every submodule in evaluation mode."""
        for module, _ in self._flags:
            module.training = False


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
