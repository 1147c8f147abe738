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
from ..privacy.distributed import distributed_noise
from ..run.backends import BackendSetting
from ..secure.sizes import KEYS
from . import wire
from .backend import FlowerBackend, clients_needed
from .backend_checks import refuse_observer
from .decoded_sums import DecodedSum, DecodedSums
from .outages import OutageWatch
from .requests import Reply, ReplyPolicy
from .sample_counts import check_unchanged
from .secure_rounds import SecureRequest, SecureRound


class SecureFlowerBackend(FlowerBackend):
    """Asks the clients of a deployment for masked uploads, and decodes their sums.

    A client that leaves before it uploads is left out of the round, as everywhere. One that leaves later counts. If
    fewer than the threshold stay, nothing is decoded: the round waits for the clients that left, which train again and
    begin a new session. If replies are refused instead, the round is abandoned.
    """

    def __init__(self, given: BackendSetting, outages: OutageWatch, reply_policy: ReplyPolicy) -> None:
        super().__init__(given, outages, reply_policy)
        self._sums_decoded: DecodedSums | None = None
        distributed = distributed_noise(given.algorithm) is not None
        # A server that adds noise stores its noisy sums, and no others.
        if (distributed or not self._private) and given.scratch is not None:
            folder = given.scratch / "releases"
            self._sums_decoded = DecodedSums(folder, reply_policy.run, replaces=not distributed)

    _left: frozenset[int] = frozenset()
    """The clients that left the current session after they trained."""

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        refuse_observer(observer)
        self._enter_round(given.ctx.t)
        sums = secure_sums(self._task, self._declaration, given.phase, cohort)
        assert sums is not None
        arrived, total = self._decoded(cohort, given, sums)
        if total is None:
            if is_private(self._declaration.algorithm) and self._declaration.algorithm.steps_without_updates:
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

    def _decoded(
        self, cohort: Cohort, given: PhaseInput, sums: SecureSums
    ) -> tuple[Cohort, tuple[list[int], Vectors] | None]:
        """Return the result of a session, as `_session`, or of the one that was decoded when this round was played."""
        if self._sums_decoded is None:
            return self._session(cohort, given, sums)
        t = given.ctx.t
        if (found := self._sums_decoded.load(t, given.phase)) is not None:
            if given.phase == "train":
                request = self._training_request(cohort, given, wire.KEYS, {})
                self._messages.compose(request, t)  # notes what clients have received
            self._late |= set(found.late)
            dtype = self._task.model.dtype
            for i, numbers in found.reports.items():
                self._reports[i] = {name: torch.tensor([v], dtype=dtype) for name, v in numbers.items()}
            return self._subset(cohort, dict.fromkeys(found.arrived)), (found.uploaded, found.integers)
        arrived, total = self._session(cohort, given, sums)
        if total is not None:
            uploaded, integers = total
            ids = arrived.ids.tolist()
            reports = {i: {name: float(v) for name, v in self._reports.get(i, {}).items()} for i in ids}
            found = DecodedSum(ids, list(uploaded), integers, sorted(self._late), reports)
            self._sums_decoded.add(t, given.phase, found)
        return arrived, total

    def _session(
        self, cohort: Cohort, given: PhaseInput, sums: SecureSums
    ) -> tuple[Cohort, tuple[list[int], Vectors] | None]:
        """Have the clients train and play a session, again after an outage that ends it.

        Returns:
            The clients that trained, and those that uploaded with the sums of their integers; None in place of the
            latter if too few of them stay.
        """
        outage = None
        while True:
            self._left = frozenset()
            secure = SecureRound(sums, self._reply_policy.run, given.ctx.t, self._exchange)
            keys = self._keys(cohort, given, sums, secure)
            arrived = self._subset(cohort, keys)
            threshold, needed = self._needed(cohort, arrived)
            total = secure.total({i: dict(reply.vectors) for i, reply in keys.items()}, threshold, needed)
            if total is not None or not self._left:
                break
            outage = outage or self._outages.begin(f"Round {self._round + 1}")
            outage.wait(self._left, max(1, needed - len(set(keys) - self._left)))
        if outage is not None:
            outage.end()
        self._late |= self._left
        return arrived, total

    def _keys(self, cohort: Cohort, given: PhaseInput, sums: SecureSums, secure: SecureRound) -> Mapping[int, Reply]:
        """Have the clients train and begin the session; returns their replies, with public keys."""
        request = self._training_request(cohort, given, wire.KEYS, {"keys": (KEYS,)})
        rules = self._declaration.rules(given.phase)
        factors = sums.by_vector(upload_factors(self._task, rules, cohort.ids, cohort.weights))
        headers = {
            i: dict(request.headers[i]) | {"phase": given.phase} | secure.header(factors, place)
            for place, i in enumerate(cohort.ids.tolist())
        }
        return self._collect_training(
            request._replace(headers=headers, raw=frozenset({"keys"})), clients_needed(cohort, given)
        )

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
            kept=Cohort.empty(),
            arrived=arrived,
            states=(cohort.ids[:0], {}),
            report=self._report(arrived, given, {}).to(given.x.device),
        )

    def _exchange(self, kind: str, requests: Mapping[int, SecureRequest]) -> dict[int, Vectors]:
        """Send the requests of a part of the session; returns the replies by client."""
        policy, t = self._reply_policy, self._round

        def validate_reply(client: int, content: RecordDict) -> Vectors:
            header, samples = wire.header_up(kind, content), int(self._task.data.sizes[client])
            wire.check_equal(header, run=policy.run, round=t, client=client)
            check_unchanged(self._collector.registry.names[client], header["samples"], samples)
            shapes = {name: (n,) for name, n in requests[client].expected.items()}
            return wire.vectors_in(content, shapes, torch.uint8)

        messages = {
            i: wire.compose(
                {"run": policy.run, "round": t, "client": i} | dict(request.header), wire.pack(request.vectors)
            )
            for i, request in requests.items()
        }
        replies = self._collector.collect(kind, messages, validate_reply, policy.deadline)
        self._left |= replies.late
        return replies.accepted
