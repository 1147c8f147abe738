"""The state of a run before round 0, as its options say."""

from __future__ import annotations

from pathlib import Path

from ..engine.execution_plan import ExecutionPlan
from ..engine.ranks import Ranks
from ..engine.state import FederatedState
from ..engine.task import Task
from ..privacy.compose import with_noise
from ..privacy.noise import SecretStreams
from .backends import BackendFactory, BackendSetting
from .hostile import hostile_clients, poisoned
from .private import private_run, selector_of
from .spec import RunSpec


def initial_state(
    spec: RunSpec,
    task: Task,
    plan: ExecutionPlan,
    make_backend: BackendFactory,
    ranks: Ranks,
    scratch: Path | None,
    secret: SecretStreams | None,
) -> FederatedState:
    """Return the state of a run before round 0.

    Args:
        spec: The options of the run.
        task: The task, without poisoned samples.
        plan: How local training is computed.
        make_backend: Makes the backend that trains the clients.
        ranks: The ranks of the run.
        scratch: The folder for client state that does not fit into memory.
        secret: The random numbers of a private run that must not follow from its seed.
    """
    algorithm, hostile = spec.composed_algorithm, hostile_clients(spec)
    if secret is not None:
        algorithm = with_noise(algorithm, secret.noise)
    trained = poisoned(spec, task, hostile)
    setting = BackendSetting(trained, task, algorithm, plan, spec.clocked, spec.on_bad_update, ranks, scratch)
    return FederatedState(
        task=trained,
        algorithm=algorithm,
        selector=selector_of(spec),
        backend=make_backend(setting),
        lr_decay=spec.lr_decay,
        rounds=spec.rounds,
        availability=spec.availability,
        system=spec.clocked,
        buffer=spec.buffer,
        update_norms=spec.update_norms,
        private=private_run(spec, secret),
        hostile=hostile,
    )
