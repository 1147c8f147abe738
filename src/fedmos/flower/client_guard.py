"""Which requests a client answers: those of its own configuration and policy, at most one of a kind per round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithm import Algorithm, Vectors
from ..codecs.compose import coding_of
from ..config.client_policy import ClientPolicy, Consent
from ..core.formatting import format_value
from ..engine.declaration import Declaration
from ..engine.job import Phase
from ..engine.secure_sums import secure_rule
from ..privacy.client_noise import has_client_noise
from ..privacy.participation import participation_of
from ..run.private import affordable_rounds
from ..run.spec import RunSpec
from ..selection.selector import thins
from . import wire
from .client_errors import ClientError, ClientErrorCode
from .deployment import Deployment
from .request_journal import Question, RequestJournal

_TRAINING = frozenset({wire.PREPARE, wire.TRAIN, wire.REPORT, wire.KEYS})
_SECURE = frozenset({wire.KEYS, wire.SHARES, wire.MASKED, wire.UNMASK})
_PLAIN = frozenset({wire.PREPARE, wire.TRAIN, wire.REPORT, wire.UPLOAD, wire.GRADIENTS})


_TOLD = ("N", "S", "W", "p", "width")
"""Fields of a header that can have an effect on an upload, and so must not differ where it gets the same noise."""


class ClientGuard:
    """Refuses the requests that a client does not answer.

    Args:
        deployment: The client's own copy of the run's configuration.
        algorithm: The algorithm of the run.
        policy: The client's policy.
        samples: The number of the client's samples.
        journal: The database file of answered requests.
    """

    def __init__(
        self, deployment: Deployment, algorithm: Algorithm, policy: ClientPolicy, samples: int, journal: Path
    ) -> None:
        self._spec, self.policy, self._samples = deployment.spec, policy, samples
        self._smallest = smallest_batch(deployment.spec, samples)
        self._needed = needed_kinds(deployment, algorithm)
        self._private, self._secure = deployment.spec.privacy is not None, secure_rule(algorithm) is not None
        private = has_client_noise(algorithm)
        self._noisy = private or policy.noise_multiplier > 0
        most = most_rounds(deployment.spec) if private else None
        per_round = 1 if private else policy.trainings_per_round
        self._journal = RequestJournal(journal, per_round, policy.rounds_back, most)

    def check(self, kind: str, header: Mapping[str, Any]) -> None:
        """Refuse a request by its kind and header.

        Raises:
            RefusedError: If the client does not answer it.
        """
        self._check_exposure()
        self._check_kind(kind, header.get("reports", ""))
        if not self.allows(kind):
            raise wire.RefusedError(f"this client's policy does not allow '{kind}'", ClientErrorCode.FORBIDDEN)
        self._check_reports(header.get("reports", ""), kind)
        if not 0 <= header.get("width", 0) <= wire.MAX_WIDTH:
            raise wire.RefusedError(f"'width' in its header must be in [0, {wire.MAX_WIDTH}], got {header['width']}")

    def admit(self, kind: str, header: Mapping[str, Any], tensors: Vectors) -> Question:
        """Record a request that is about to be answered, with the tensors that determine the answer.

        Raises:
            RefusedError: If the client has answered a different one in this round, or the round is long past.
        """
        phase = "prepare" if kind == wire.PREPARE or header.get("phase") == "prepare" else "train"
        name = phase if kind in _TRAINING else f"{kind}.batch" if header.get("batch") else kind
        told = tuple(header.get(part) for part in ("lr", "last", *(_TOLD if self._noisy and kind in _TRAINING else ())))
        digest = hashlib.sha256(repr((name, *told)).encode())
        if header.get("stored") or header.get("restart"):
            digest.update(repr((header["stored"], header["restart"])).encode())
        for key in sorted(tensors):
            digest.update(key.encode())
            digest.update(np.ascontiguousarray(tensors[key].detach().cpu().numpy()).data)
        asked = Question(header["run"], header["round"], name, digest.hexdigest())
        self._journal.admit(asked)
        return asked

    def admit_release(self, header: Mapping[str, Any], phase: str) -> None:
        """Record that a sum with this client's upload is revealed; a phase of a round has one such session.

        Raises:
            RefusedError: If there was another one.
        """
        self._journal.admit(Question(header["run"], header["round"], f"sum.{phase}", header["session"]))

    def _check_exposure(self) -> None:
        """Refuse every question about too few samples."""
        if self._samples < self.policy.min_samples:
            raise wire.RefusedError(
                f"this client has {self._samples} samples, and its policy demands {self.policy.min_samples}",
                ClientErrorCode.TOO_FEW_SAMPLES,
            )
        if self._smallest < self.policy.min_batch:
            raise wire.RefusedError(
                f"this client's batches have {self._smallest} samples, and its policy demands {self.policy.min_batch}",
                ClientErrorCode.SMALL_BATCHES,
            )

    def _check_kind(self, kind: str, reports: str) -> None:
        """Refuse requests for more than clipped uploads under privacy, or than masked ones by secure aggregation."""
        trains = kind in _SECURE or kind in (wire.PREPARE, wire.TRAIN)
        if self._private and (reports or not trains):
            raise wire.RefusedError(
                "this client's configuration has privacy: it sends clipped uploads and nothing else",
                ClientErrorCode.FORBIDDEN,
            )
        if kind in _PLAIN and self._secure:
            raise wire.RefusedError("this client sends vectors by secure aggregation only", ClientErrorCode.FORBIDDEN)
        if kind in _SECURE and not self._secure:
            raise wire.RefusedError("this client's configuration has no secure aggregation", ClientErrorCode.FORBIDDEN)

    def allows(self, kind: str) -> bool:
        """Whether the policy allows a kind of request."""
        consents: dict[str, Consent] = {
            wire.GRADIENTS: self.policy.gradients,
            wire.LOSSES: self.policy.losses,
            wire.EVALUATE: self.policy.metrics,
            wire.SCORES: self.policy.metrics,
        }
        consent = consents.get(kind, "needed")
        if self.policy.noise_multiplier and kind in (wire.LOSSES, wire.EVALUATE, wire.SCORES) and consent != "always":
            return False
        return consent == "always" or (consent == "needed" and kind in self._needed)

    def _check_reports(self, reports: str, kind: str) -> None:
        """Refuse reports that the configured selector does not need, and with noise those that have none."""
        if not reports or self.policy.losses == "always":
            return
        unknown = sorted(set(reports.split(",")) - set(self._spec.selection.reports))
        if unknown or self.policy.losses == "never" or self.policy.noise_multiplier:
            raise wire.RefusedError(
                f"this client's policy does not allow the reports {format_value(reports)} with '{kind}'",
                ClientErrorCode.FORBIDDEN,
            )


def needed_kinds(deployment: Deployment, algorithm: Algorithm) -> frozenset[str]:
    """Return the kinds of requests that the configured method needs."""
    spec = deployment.spec
    kinds = {wire.HELLO, *_SECURE} if secure_rule(algorithm) is not None else {wire.HELLO}
    if algorithm.prepare_up:
        kinds.add(wire.PREPARE)
    kinds |= {wire.REPORT, wire.UPLOAD} if thins(spec.selection) else {wire.TRAIN}
    asks = spec.selection.asks
    kinds |= {kind for name, kind in (("losses", wire.LOSSES), ("gradients", wire.GRADIENTS)) if name in asks}
    asked = {wire.EVALUATE: deployment.deploy.train_metrics, wire.SCORES: spec.evaluate_clients is not None}
    return frozenset(kinds | {kind for kind, needed in asked.items() if needed})


def most_rounds(spec: RunSpec) -> int:
    """Return in how many rounds a client takes part at most: what ε is computed for."""
    assert spec.privacy is not None
    rounds = spec.rounds if spec.privacy.budget is None else affordable_rounds(spec)
    bounds = participation_of(spec.selection, len(spec.data))
    return rounds if bounds is None else bounds.times(rounds)


def smallest_batch(spec: RunSpec, samples: int) -> int:
    """Return the number of samples of the smallest batch of local training."""
    if spec.batch_size is None:
        return samples
    if spec.local_epochs is not None and samples % spec.batch_size:
        return samples % spec.batch_size
    return min(spec.batch_size, samples)


def check_protection(policy: ClientPolicy, declaration: Declaration) -> None:
    """Refuse clipping and noise at a client whose uploads do not allow them.

    Raises:
        ClientError: If they do not.
    """
    if policy.clip_norm is not None and coding_of(declaration.algorithm).up:
        raise ClientError(
            ClientErrorCode.CONFIGURATION,
            "Cannot use [policy] clip_norm with 'uplink' because encoded uploads cannot be clipped; use uplink=None",
        )
    phases: tuple[Phase, ...] = ("prepare", "train")
    numbers = [name for phase in phases for name, shape in declaration.up(phase).items() if not shape]
    if policy.noise_multiplier and numbers:
        raise ClientError(
            ClientErrorCode.CONFIGURATION,
            f"Cannot use [policy] noise_multiplier with {type(declaration.algorithm).__name__} because it also sends "
            f"numbers without noise: {', '.join(numbers)}; use clip_norm alone, or another method",
        )
