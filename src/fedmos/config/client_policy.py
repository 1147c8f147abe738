"""The policy of a client: which questions it answers, set at the client and never by the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.validation import LARGE, check, count, non_negative, none, one_of, positive, whole_number

Consent = Literal["never", "needed", "always"]
"""Whether a question is answered: never, if the client's copy of the configuration needs it, or always."""

_consent = one_of("never", "needed", "always")


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """What a client of a deployment answers; the table `[policy]` of the client's own configuration file.

    Training is answered as the client's copy of the run's configuration says: its model, algorithm, batch size, number
    of steps and seed. The server chooses the model x, the round and the step size.

    Args:
        gradients: Whether `query.gradients` is answered. "needed": only if the configured selector asks for gradients,
            as `CACS` does.
        losses: Whether `query.losses` and reports of losses are answered. "needed": only if the configured selector
            asks for them.
        metrics: Whether `evaluate.loss` and `evaluate.own` are answered. "needed": only with `[deploy] train_metrics =
            true`, and with `evaluate_clients`.
        min_samples: A client with fewer samples answers no question about them, neither about fewer test samples.
        min_batch: A client whose batches have fewer samples answers no question about them.
        trainings_per_round: The number of different requests of a kind that are answered in a round; one where clients
            add the noise of `privacy`. The same request is answered again, with the same bits.
        rounds_back: How many rounds before its newest one a client repeats; requests of earlier rounds are refused as
            replays.
        clip_norm: The largest Euclidean norm of each uploaded vector; longer ones are scaled down at the client. State
            that the client keeps is not scaled.
        noise_multiplier: Each uploaded vector gets normal noise of standard deviation noise_multiplier · clip_norm at
            the client, from a secret of the client. A repeated request gets the same noise. Losses, metrics and
            reports, which have no noise, are then answered only with "always".

    Raises:
        ValueError: If an option has an invalid value.

    Example:
        >>> from fedmos.flower import ClientPolicy
        >>> ClientPolicy(min_batch=8).gradients
        'needed'
    """

    gradients: Consent = "needed"
    losses: Consent = "needed"
    metrics: Consent = "needed"
    min_samples: int = 1
    min_batch: int = 1
    trainings_per_round: int = 1
    rounds_back: int = 1
    clip_norm: float | None = None
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        check(
            self,
            gradients=_consent,
            losses=_consent,
            metrics=_consent,
            min_samples=count,
            min_batch=count,
            trainings_per_round=count,
            rounds_back=whole_number,
            clip_norm=positive.up_to(LARGE) | none,
            noise_multiplier=non_negative.up_to(LARGE),
        )
        if self.noise_multiplier and self.clip_norm is None:
            raise ValueError("ClientPolicy: 'clip_norm' must be given with 'noise_multiplier', got None")
