"""Values that the code of `transformers` reads from inputs, where a cohort's program has none to read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from ..kernels.client_axis import is_vectorised

_SHORTCUTS = {
    "transformers.masking_utils": {
        "_ignore_causal_mask_sdpa",
        "_ignore_bidirectional_mask_sdpa",
        "find_packed_sequence_indices",
        "create_recurrent_attention_mask",
    },
    "transformers.modeling_attn_mask_utils": {"_ignore_causal_mask_sdpa", "_prepare_4d_attention_mask_for_sdpa"},
    "transformers.modeling_utils": {"warn_if_padding_and_no_attention_mask"},
}
"""By module, functions that read a value only to omit a mask that masks nothing, or to warn.

`transformers` itself reads nothing there while it is traced. False has the same outputs as any other answer.
"""


def is_shortcut(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether `func`, called by a function of `_SHORTCUTS`, reads a tensor with a client axis: the answer is False.

    For calls from within `__torch_function__`. No other code, above all not the user's, gets an answer.
    """
    if func not in (Tensor.__bool__, Tensor.__contains__) or not is_vectorised(args[0]):
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    if frame is None:
        return False
    return frame.f_code.co_name in _SHORTCUTS.get(frame.f_globals.get("__name__", ""), ())
