"""Requests to clients and their replies, before they are packed into messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..engine.job import Phase
from . import wire
from .members.sources import StateSources


class ReplyPolicy(NamedTuple):
    """The conditions that replies must meet."""

    run: str
    deadline: float
    """Seconds for each request."""
    norm_bound: float | None
    """The largest norm of a vector; None for no fixed bound."""
    norm_factor: float | None
    """How many times the median a norm may be; None for no adaptive bound."""
    reports: Sequence[str]
    """The reports that the selector declares."""
    train_metrics: bool
    compress: bool = False
    """Whether encoded vectors are compressed."""
    quorum: float = 0.0
    """The share of clients that must answer a probe of the selector; one client at least."""
    sources: StateSources = StateSources()
    """From which of its files each client starts a round."""


class Reply(NamedTuple):
    """The content of a client's reply, on the CPU. Large uploads may be on disk; see `upload_spool`."""

    vectors: Mapping[str, Tensor]
    numbers: Vectors


class Request(NamedTuple):
    """A request to several clients, which receive x with it if they do not have it."""

    kind: str
    headers: Mapping[int, Mapping[str, Any]]
    """By client."""
    x: Tensor
    msg: Vectors
    vectors: wire.Shapes
    """The names and shapes of the tensors that a reply must have."""
    numbers: Sequence[str]
    dtype: torch.dtype
    """The dtype of the numbers."""
    sends_x: bool = True
    """Whether clients receive x with it."""
    phase: Phase | None = None
    """The phase of the round in which vectors are coded; None where they are sent as they are."""
    raw: frozenset[str] = frozenset()
    """The tensors of a reply that are bytes."""
    counted: bool = True
    """Whether the bytes are part of the run's communication."""
    undefined: bool = False
    """Whether numbers may be NaN or infinite, as scores that are not defined."""
