"""Functions of tensors that are compiled for every shape they are called with."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..kernels.pooling import written_out
from .compile_time import CLOCK


class CannotCompile(RuntimeError):
    """Compilation failed."""


class Compiled:
    """A function of tensors that is compiled for every shape it is called with.

    The function is traced with `make_fx` into plain tensor operations, without `vmap` and `grad`, and compiled with
    Inductor, the back end of `torch.compile`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._programs: dict[object, Callable[..., Any]] = {}
        self.seconds = 0.0
        self.compilations: dict[str, float] = {}
        """The number of operations of each compiled program, by its hash."""

    def __call__(self, *arguments: Tensor) -> Any:
        shape = tuple((a.shape, a.stride()) for a in arguments)
        if shape not in self._programs:
            try:
                self._programs[shape] = self._compile(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise CannotCompile(str(error).strip().split("\n")[0]) from error
        return self._programs[shape](*arguments)

    def _compile(self, *arguments: Tensor) -> Callable[..., Any]:
        from torch import _inductor
        from torch.fx.experimental.proxy_tensor import make_fx

        began = perf_counter()
        with written_out.on(), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # `precision` decides this
            traced = make_fx(lambda *given: self._function(*given))(*arguments)
            # A forward pass that failed and was repeated (`CohortTensors`) leaves operations that nothing uses.
            traced.graph.eliminate_dead_code()
            traced.recompile()
            operations, key = len(traced.graph.nodes), _hash(traced.code, arguments)
            spent, before = perf_counter() - began, _cache_counts()
            with CLOCK.announced(operations, arguments[0].device.type, key, spent) as compilation:
                with _cacheable():
                    program: Callable[..., Any] = _inductor.compile(traced, list(arguments))
                program(*arguments)
                hit, missed, bypassed = (new - old for new, old in zip(_cache_counts(), before, strict=True))
                compilation.cached = hit > 0 and missed + bypassed == 0
                compilation.kept = hit + missed > 0 and bypassed == 0
        self.seconds += perf_counter() - began
        self.compilations[key] = float(operations)
        return program


def _cacheable() -> AbstractContextManager[Any]:
    """Have Inductor keep programs on the disk for other processes; it keeps none that is traced without symbols."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    return tracing(TracingContext(mode))


def _cache_counts() -> tuple[int, int, int]:
    """Return how many programs Inductor has found on the disk, has stored there, and could not store."""
    from torch._dynamo.utils import counters

    found = counters["inductor"]
    return found["fxgraph_cache_hit"], found["fxgraph_cache_miss"], found["fxgraph_cache_bypass"]


def _hash(code: str, arguments: tuple[Tensor, ...]) -> str:
    """Identify a program by its operations and the shapes of its arguments."""
    shapes = [(tuple(a.shape), a.stride(), str(a.dtype)) for a in arguments]
    return hashlib.sha256(f"{torch.__version__} {code} {shapes}".encode()).hexdigest()[:24]


def can_compile(device: torch.device) -> bool:
    """Whether this machine can compile programs."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (7, 0)
    return device.type == "cpu" and any(shutil.which(name) for name in ("g++", "clang++"))
