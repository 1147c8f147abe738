"""Evaluation of the clients of a deployment: each evaluates itself and sends its scores, which are numbers."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ..algorithm import Algorithm, Vectors
from ..engine.snapshot import ClientScores
from ..engine.state import FederatedState
from ..engine.task import Task
from ..run.client_evaluation import GLOBAL, ClientEvaluation, EvaluatedGroup, sampled_clients
from . import wire
from .backend import FlowerBackend
from .client_scoring import MODEL, SERVER_MODEL, TESTS
from .requests import Request

_log = logging.getLogger("fedmos")
_MOST = 1e12
"""Test samples of a client."""


class ServedClientEvaluation(ClientEvaluation):
    """Asks clients for their scores; see `ClientEvaluation`.

    The server does not know who has test samples. So a sample of clients is one of all clients.
    """

    _sizes: Tensor | None = None
    """The number of test samples of each client, as of the last evaluation."""

    def _found_groups(self, task: Task) -> list[EvaluatedGroup]:
        return [EvaluatedGroup(GLOBAL, task, sampled_clients(self._how, torch.arange(len(task.data)), self._spec.seed))]

    def measure(self, state: FederatedState) -> ClientScores:
        """Ask the clients after a round; returns the values of all clients, NaN for those that do not answer."""
        assert isinstance(state.backend, FlowerBackend)
        (group,) = self._groups
        names = [*self.score_names, TESTS]
        replies = {
            i: scores
            for i, scores in state.backend.numbers(self._request(state, group.ids, names), state.t - 1).items()
            if self._plausible(state, i, scores)
        }
        table = torch.full((len(names), len(state.task.data)), torch.nan, dtype=torch.float64)
        for i, scores in replies.items():
            table[:, i] = torch.cat([scores[name] for name in names])
        self._sizes = table[-1].nan_to_num(nan=0.0).to(torch.int64)
        if not bool(self._sizes.any()):
            _log.warning("No client has sent scores on test samples of its own in round %d", state.t)
        return ClientScores(state.t, dict(zip(self.score_names, table, strict=False)))

    def _test_sizes(self, group: EvaluatedGroup) -> Tensor:
        assert self._sizes is not None
        return self._sizes

    def _request(self, state: FederatedState, ids: Tensor, names: list[str]) -> Request:
        assert isinstance(state.backend, FlowerBackend)
        last = state.clients.last[ids].tolist()
        headers = {
            i: {
                "lr": state.lr(state.t),
                "last_lr": state.lr(max(state.t - 1, 0)),
                "N": len(state.task.data) if state.members is None else state.members,
                "S": len(ids),
                "p": float(state.task.data.importance[i]),
                "last": t,
            }
            | state.backend.sources.header(t)
            for i, t in zip(ids.tolist(), last, strict=True)
            if i not in state.backend.retired
        }
        sends = {MODEL: state.measured}
        if type(state.algorithm).evaluated is not Algorithm.evaluated:
            sends[SERVER_MODEL] = state.x
        return Request(
            wire.SCORES, headers, state.x, sends, {}, names, torch.float64, sends_x=False, counted=False, undefined=True
        )

    def _plausible(self, state: FederatedState, i: int, scores: Vectors) -> bool:
        """Whether a client's scores can be what they claim; others are logged."""
        tests = float(scores[TESTS])
        accuracies = [float(v) for name, v in scores.items() if name.endswith("_accuracy")]
        fit = 0 <= tests < _MOST and tests == int(tests) and all(not a < 0 and not a > 1 for a in accuracies)
        if not fit:
            name = state.task.data.label(i)
            _log.warning("Refused the scores of client %s in round %d: they are out of range", name, state.t)
        return fit
