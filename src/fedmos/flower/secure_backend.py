"""The backend of a deployment with secure aggregation: clients train, then take part in a session."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import RecordDict

from ..algorithm import Vectors
from ..engine.aggregation import scales_of, secure_sums, upload_factors
from ..engine.backend import CohortUpdate, PhaseInput, StepObserver
from ..engine.cohort import Cohort
from ..engine.secure_sums import SATURATED, SecureSums, secure_rule
from ..privacy.compose import is_private
from ..secure.sizes import KEYS
from . import wire
from .backend import FlowerBackend
from .requests import Reply
from .secure_rounds import SecureRequest, SecureRound


class SecureFlowerBackend(FlowerBackend):
    """Asks the clients of a deployment for masked uploads, and decodes their sums.

    A client that leaves before it uploads is left out of the round, as everywhere. One that leaves later counts. If
    fewer than the threshold stay, nothing is decoded and the round is abandoned.
    """

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        if observer is not None:
            raise ValueError("Cannot observe local steps because clients are remote")
        self._enter_round(given.ctx.t)
        sums = secure_sums(self._task, self._declaration, given.phase, cohort)
        assert sums is not None
        secure = SecureRound(sums, self._reply_policy.run, given.ctx.t, self._exchange)
        keys = self._keys(cohort, given, sums, secure)
        arrived = self._subset(cohort, keys)
        total = secure.total({i: reply.vectors for i, reply in keys.items()}, *self._needed(cohort, arrived))
        if total is None:
            if is_private(self._declaration.algorithm):
                # A sum of zero in its place would depend on one client by more than its own bounded upload.
                raise RuntimeError(
                    f"Cannot sum the uploads of round {given.ctx.t + 1} because too few clients stayed in it, and with "
                    "'privacy' it cannot be abandoned; start the run again to repeat it, or use larger cohorts"
                )
            return self._none(cohort, given, arrived)
        uploaded, integers = total
        kept = self._subset(cohort, dict.fromkeys(uploaded))
        W = None if len(kept.ids) == len(cohort.ids) else given.ctx.W
        integers = {key: v.to(given.x.device) for key, v in integers.items()}
        return CohortUpdate(
            sums=sums.decode(integers, scales_of(sums.rules, kept.weights, W), given.x),
            kept=kept if W is None else kept.scaled(W),
            arrived=arrived,
            states=(kept.ids, self._states(kept.ids) if given.phase == "train" else {}),
            report=self._report(arrived, given, {}).to(given.x.device),
            saturated=integers.get(SATURATED),
        )

    def _keys(self, cohort: Cohort, given: PhaseInput, sums: SecureSums, secure: SecureRound) -> Mapping[int, Reply]:
        """Have the clients train and begin the session; returns their replies, with public keys."""
        request = self._training_request(cohort, given, wire.KEYS, {"keys": (KEYS,)})
        rules = self._declaration.rules(given.phase)
        factors = sums.by_vector(upload_factors(self._task, rules, cohort.ids, cohort.weights))
        headers = {
            i: dict(request.headers[i]) | {"phase": given.phase} | secure.header(factors, place)
            for place, i in enumerate(cohort.ids.tolist())
        }
        return self._collect_training(request._replace(headers=headers, raw=frozenset({"keys"})))

    def _needed(self, cohort: Cohort, arrived: Cohort) -> tuple[int, int]:
        """Return how many shares give a secret, and how many uploads are decoded at least."""
        rule = secure_rule(self._declaration.algorithm)
        assert rule is not None
        return rule.option.needed(len(arrived.ids)), rule.option.needed(len(cohort.ids))

    def _none(self, cohort: Cohort, given: PhaseInput, arrived: Cohort) -> CohortUpdate:
        """Return the update of a phase whose sums are not decoded."""
        shapes = self._declaration.sums(given.phase)
        return CohortUpdate(
            sums={name: given.x.new_zeros(shape) for name, shape in shapes.items()},
            kept=cohort.none(),
            arrived=arrived,
            states=(cohort.ids[:0], {}),
            report=self._report(arrived, given, {}).to(given.x.device),
        )

    def _exchange(self, kind: str, requests: Mapping[int, SecureRequest]) -> dict[int, Vectors]:
        """Send the requests of a part of the session; returns the replies by client."""
        policy, t = self._reply_policy, self._round

        def validate_reply(client: int, content: RecordDict) -> Vectors:
            header, samples = wire.header_up(kind, content), int(self._task.data.sizes[client])
            wire.check_equal(header, run=policy.run, round=t, client=client, samples=samples)
            shapes = {name: (n,) for name, n in requests[client].expected.items()}
            return wire.vectors_in(content, shapes, torch.uint8)

        messages = {
            i: wire.compose(
                {"run": policy.run, "round": t, "client": i} | dict(request.header), wire.pack(request.vectors)
            )
            for i, request in requests.items()
        }
        replies = self._collector.collect(kind, messages, validate_reply, policy.deadline)
        self._late |= replies.late
        return replies.accepted
