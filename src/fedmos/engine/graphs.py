"""CUDA graphs: a function of tensors, recorded once for each shape and replayed without Python in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger("fedmos")

O = TypeVar("O")


class Graphs:
    """The recordings of one run. They share their memory, so outputs must be used or copied before the next replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._made: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor], Any] | None] = {}

    def run(self, key: Hashable, body: Callable[..., O], *given: Tensor) -> O:
        """body(*given). What it reads beside must stay where and what it is."""
        if key not in self._made:
            self._made[key] = self._record(body, given)
        made = self._made[key]
        if made is None:
            return body(*[v.to(self._device) for v in given])
        graph, held, outputs = made
        for to, value in zip(held, given, strict=True):
            to.copy_(value, non_blocking=True)
        graph.replay()
        return outputs  # type: ignore[no-any-return]

    def _record(
        self, body: Callable[..., Any], given: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any] | None:
        held = [v.to(self._device, copy=True) for v in given]
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):  # compilations and libraries' set-up happen here
            body(*held)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on using the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = body(*held)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize(self._device)
            _log.warning("Working step by step because the work cannot be recorded: %s", str(error).split("\n")[0])
            return None
        self._pool = graph.pool()
        return graph, held, outputs
