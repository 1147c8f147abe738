"""The training mode of each submodule, as the user gave it."""

from __future__ import annotations

import logging

from torch import nn

from .statistics_layout import BatchNorm

_log = logging.getLogger("fedmos")


class TrainingFlags:
    """Records which submodules of a module the user put in evaluation mode, so that they stay there in training.

    A module that is in evaluation mode as a whole, as `from_pretrained` returns it, trains as after `.train()`;
    only its BatchNorm layers with running statistics stay in evaluation mode.
    """

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.named_modules())
        if any(part.training for _, part in parts):
            frozen = [(name, part) for name, part in parts if not part.training]
        else:
            frozen = [(name, part) for name, part in parts if _has_statistics(part)]
            if frozen:
                _log.info("The BatchNorm layers of the model stay in evaluation mode, in which the model was given")
        self._module, self._frozen = module, [part for _, part in frozen]
        self._trained = [part for _, part in parts if part not in self._frozen]
        self._plain = all(type(part).train is nn.Module.train and "train" not in vars(part) for _, part in parts)
        self.frozen = [name for name, _ in frozen]
        """The names of the submodules that stay in evaluation mode in training."""

    def train(self) -> None:
        """Put every submodule in the mode in which it trains."""
        if self._plain and all(part.training for part in self._trained) and not any(p.training for p in self._frozen):
            return
        self._module.train()  # a user's module may do more here than to set flags
        for part in self._frozen:
            part.training = False

    def evaluate(self) -> None:
        """Put every submodule in evaluation mode."""
        self._module.eval()


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, BatchNorm) and module.running_mean is not None
