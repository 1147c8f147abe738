"""CUDA graphs: a function of tensors is captured once for each shape and replayed without Python in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.vectorisation_errors import CannotVectorise

_log = logging.getLogger("fedmos")

O = TypeVar("O")


class Graphs:
    """The captured graphs of one run. They share memory: use or copy outputs before the next replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor], Any] | None] = {}

    def run(self, key: Hashable, body: Callable[..., O], *given: Tensor) -> O:
        """Return body(*given), captured or replayed. Other tensors that `body` reads must not change or move."""
        if key not in self._captured:
            self._captured[key] = self._capture(body, given)
        captured = self._captured[key]
        if captured is None:
            return body(*[v.to(self._device) for v in given])
        graph, inputs, outputs = captured
        for target, value in zip(inputs, given, strict=True):
            target.copy_(value, non_blocking=True)
        graph.replay()
        return outputs  # type: ignore[no-any-return]

    def _capture(
        self, body: Callable[..., Any], given: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any] | None:
        inputs = [v.to(self._device, copy=True) for v in given]
        side = _side_stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):  # compilations and the initialisation of libraries happen here
            body(*inputs)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        cause: Exception | None = None
        try:
            # Other threads may use the device during the capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                try:
                    outputs = body(*inputs)
                except Exception as error:
                    cause = error  # the end of a failed capture raises another one
                    raise
        except (RuntimeError, CannotVectorise) as error:
            cause = cause or error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            torch.cuda.synchronize(self._device)
            _log.warning(
                "Not using a CUDA graph because the work cannot be captured: %s: %s",
                type(cause).__name__,
                str(cause).split("\n")[0],
            )
            return None
        self._pool = graph.pool()
        return graph, inputs, outputs


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one stream per device: memory that is freed on a stream is used again on this stream only."""
    return torch.cuda.Stream(device)
