"""What `Graphs` does where work cannot be captured; the calls of CUDA are replaced."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from fedmos.engine import graphs

CPU = torch.device("cpu")


@contextmanager
def graph(made, pool, capture_error_mode):
    """As `torch.cuda.graph`: after an error, the end of the capture raises another one."""
    try:
        yield
    except Exception as error:
        raise RuntimeError("operation failed due to a previous error during capture") from error


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, replacement in {
        "graph": graph,
        "CUDAGraph": object,
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda given: nullcontext(),
        "synchronize": lambda device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    graphs._side_stream.cache_clear()
    yield
    graphs._side_stream.cache_clear()


def failing(error: Exception):
    """Return a function that fails in its second call, which is the captured one."""
    calls = []

    def body(v: torch.Tensor) -> torch.Tensor:
        calls.append(v)
        if len(calls) == 2:
            raise error
        return v + 1

    return body


def test_the_first_error_is_named_and_the_work_is_done_without_a_graph(caplog):
    with caplog.at_level(logging.WARNING, logger="fedmos"):
        try:
            raise torch.OutOfMemoryError("of the caller, who has reacted to it")
        except torch.OutOfMemoryError:
            found = graphs.Graphs(CPU).run("work", failing(RuntimeError("reads a value\nand more")), torch.ones(2))
    assert found.equal(torch.full((2,), 2.0))
    assert caplog.messages == [
        "Not using a CUDA graph because the work cannot be captured: RuntimeError: reads a value"
    ]


def test_too_little_memory_is_not_taken_for_work_that_cannot_be_captured():
    with pytest.raises(torch.OutOfMemoryError, match="too little"):
        graphs.Graphs(CPU).run("work", failing(torch.OutOfMemoryError("too little")), torch.ones(2))
