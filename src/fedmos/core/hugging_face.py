"""Hugging Face models under `vmap`."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from ..kernels.client_axis import is_vectorised


def support_vmap(model: nn.Module) -> None:
    """Let `transformers` treat the tensors of a cohort like those of a compiled program, if `model` is from there.

    `transformers` reads the values of attention masks and tokens, to skip a mask that masks nothing or to warn, unless
    `is_tracing(tensor)` says that a tensor has no values to read. Tensors under `vmap` have none.
    """
    library: Any = sys.modules.get("transformers.utils.import_utils")
    if library is None or not any(type(module).__module__.startswith("transformers.") for module in model.modules()):
        return
    known = getattr(library, "is_fake_tensor", None)
    if known is not None and not hasattr(known, "without_vmap"):

        def is_fake_tensor(x: object) -> bool:
            return bool(known(x)) or is_vectorised(x)

        is_fake_tensor.without_vmap = known  # type: ignore[attr-defined]
        library.is_fake_tensor = is_fake_tensor
