"""Settings of PyTorch's compiler."""

from contextlib import AbstractContextManager


def scalar_code() -> AbstractContextManager:
    """Let Inductor write C++ without vector instructions, which takes half the time to compile."""
    import torch._inductor.config as settings

    return settings.patch({"cpp.simdlen": 1})
