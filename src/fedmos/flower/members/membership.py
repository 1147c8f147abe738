"""The clients of a served run: who they are in this part of it, and the changes that wait for its next round."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...algorithm import Algorithm
from ...core.history import History
from ...data.federated import FederatedData
from ...engine.snapshot import Snapshot
from ...run.spec import RunSpec
from ...storage.checkpoint import Checkpoints
from ..deployment import Deployment
from ..manifest import DeploymentManifest
from .changes import Order, read_orders
from .member_list import Applied, MemberList, RunLimits, RunPart
from .migration import migrated
from .quarantine import Quarantine
from .sources import StateSources

_log = logging.getLogger("fedmos")
_WAITED_FOR = frozenset({"retire", "reset", "samples", "rollback"})
"""The changes that end the wait of a round for missing clients."""


class ClientMembership:
    """The clients of a run until the next change.

    Args:
        folder: The run folder.
        member_list: The clients, with the changes that take effect now.
        quarantine: When refused clients are left out.
        keep_checkpoints: How many checkpoints are kept.
    """

    def __init__(self, folder: Path, member_list: MemberList, quarantine: Quarantine, keep_checkpoints: int) -> None:
        self.member_list, self.keep_checkpoints = member_list, keep_checkpoints
        self._folder, self._quarantine = folder, quarantine
        self._damaged: set[int] = set()

    @classmethod
    def open(cls, folder: Path, deployment: Deployment, manifest: DeploymentManifest) -> ClientMembership:
        """Read the clients of a run folder, and the changes that were ordered. Nothing is written.

        Raises:
            ValueError: If the configuration has other clients, or another order of them, or a file is damaged.
        """
        spec, deploy = deployment.spec, deployment.deploy
        names = list(deployment.names)
        member_list = MemberList.load(folder) or MemberList(initial=names, parts=[RunPart(manifest.run, 0)])
        check_names(folder, names, member_list)
        member_list = replace(member_list, limits=limits_of(deployment))
        # Whether a client counts in a private run must not depend on what it sent; with a buffer, nobody is selected.
        without = spec.privacy is not None or spec.buffer is not None
        refusals = "off" if without else deploy.quarantine
        made = cls(folder, member_list, Quarantine(refusals, deploy.quarantine_rounds), deploy.keep_checkpoints)
        orders = made._new_orders()
        made.member_list = member_list.with_orders(orders)
        new = [done.change for done in made.member_list.applied if done.after is None]
        # Under privacy, a client's answers are counted by run id, so that id stays.
        if spec.privacy is None and any(change.kind != "release" for change in new):
            made.member_list = made.member_list.with_part()
        for number in set(made.member_list.refused) - set(member_list.refused):
            _log.warning("The change %06d has no effect: %s", number, made.member_list.refused[number])
        return made

    def _new_orders(self) -> list[Order]:
        orders, damaged = read_orders(self._folder, self.member_list.handled)
        for number in sorted(set(damaged) - self._damaged):
            _log.warning("%s", damaged[number])
        self._damaged |= set(damaged)
        return orders

    @property
    def names(self) -> Sequence[str]:
        """The names of all clients, in the order of their numbers."""
        return self.member_list.names

    def pending(self) -> bool:
        """Whether changes were ordered since this part of the run began."""
        return bool(self._new_orders())

    def ends_waiting(self) -> bool:
        """Whether changes were ordered without which a round could wait in vain."""
        return any(order.change.kind in _WAITED_FOR for order in self._new_orders())

    def enter(self, snapshot: Snapshot | None, checkpoints: Checkpoints, spec: RunSpec, x: Tensor) -> Snapshot | None:
        """Let the changes take effect in the state of the run; the run folder must be locked.

        Args:
            snapshot: The newest state of the run; None before its first checkpoint.
            checkpoints: The checkpoints of the run, to go back to an earlier one.
            spec: The options of the run.
            x: The initial model.
        """
        new = [done for done in self.member_list.applied if done.after is None]
        for done in new:
            if done.change.kind == "rollback":
                snapshot = self._rolled_back(done, snapshot, checkpoints)
        t = 0 if snapshot is None else len(snapshot.history)
        self.member_list = self.member_list.dated(t)
        self.member_list.write(self._folder)
        for done in new:
            if done.number not in self.member_list.refused:
                _log.info("%s, from round %d on", done.change, t + 1)
        if snapshot is None:
            return None
        return migrated(snapshot, self.member_list, initial_sums(spec.composed_algorithm, x))

    def _rolled_back(self, done: Applied, snapshot: Snapshot | None, checkpoints: Checkpoints) -> Snapshot | None:
        """Return the state after an earlier round, which becomes the newest checkpoint."""
        t = done.change.round or 0
        try:
            if snapshot is None or t > len(snapshot.history):
                played = 0 if snapshot is None else len(snapshot.history)
                raise ValueError(f"Cannot go back to round {t} because the run has played {played} rounds")
            earlier = checkpoints.load_round(t)
        except ValueError as error:
            self.member_list = self.member_list.without(done.number, str(error))
            _log.warning("The change %06d has no effect: %s", done.number, error)
            return snapshot
        checkpoints.write(earlier)
        self.member_list = self.member_list.dated(t)
        return earlier

    def sources(self, algorithm: Algorithm) -> StateSources:
        """Return from which of its files each client starts a round."""
        return StateSources(lambda: self.member_list, sorted(set(algorithm.population_sums.values())))

    def weighted(self, data: FederatedData) -> FederatedData:
        """Return the data with the importances of the clients that are not retired."""
        if not self.member_list.retired:
            return data
        # Without rounding, importances by size are those of a federation of the clients that are left.
        p = data.sizes.to(torch.float64) if self.member_list.limits.own_data else data.importance.clone()
        p[sorted(self.member_list.retired)] = 0.0
        if float(p.sum()) <= 0:
            raise ValueError("Cannot go on because the clients that are left have no importance; admit others")
        return replace(data, importance=p / p.sum())

    @property
    def active(self) -> int | None:
        """The number of clients that are not retired; None if that is all."""
        return len(self.names) - len(self.member_list.retired) if self.member_list.retired else None

    def quarantined(self, history: History) -> list[int]:
        """Return the clients that are in quarantine in the round after these records."""
        found = self._quarantine.clients(history, self.member_list.cleared)
        return sorted(found - set(self.member_list.retired))

    def excluded(self, history: History) -> Tensor:
        """Return the clients that must not be in the cohort of the round after these records.

        Raises:
            RuntimeError: If no other client is left.
        """
        quarantined = self.quarantined(history)
        out = sorted({*self.member_list.retired, *quarantined})
        if len(out) == len(self.names):
            named = ", ".join(self.names[i] for i in quarantined[:20])
            raise RuntimeError(
                f"Cannot go on with round {len(history) + 1} because all clients are in quarantine after repeated "
                f"refusals: {named}; see the log for the reasons, release clients by `fedmos deploy release NAME` in "
                "the run folder, and start the run again (fedmos deploy start)"
            )
        return torch.tensor(out, dtype=torch.int64)


def check_names(folder: Path, given: Sequence[str], member_list: MemberList) -> None:
    """Refuse another order of the clients: each client's state belongs to its number.

    Raises:
        ValueError: If a client would have another number, or clients are missing or new.
    """
    known, failure = member_list.names, f"Cannot resume the run in {folder} because"
    for i, (name, before) in enumerate(zip(given, known, strict=False)):
        if name != before:
            raise ValueError(
                f"{failure} the order of 'clients' has changed: client {i} is '{before}', got '{name}'; clients keep "
                f"their numbers, so list them as before: {', '.join(known[:20])}"
            )
    if len(given) > len(known):
        new = ", ".join(given[len(known) :][:5])
        raise ValueError(f"{failure} 'clients' names {new}; admit further clients by `fedmos deploy admit NAME`")
    if len(given) < len(member_list.initial):
        gone = ", ".join(known[len(given) : len(member_list.initial)][:5])
        raise ValueError(
            f"{failure} 'clients' lacks {gone}; leave the list as it is, and remove clients by `fedmos deploy retire "
            "NAME`"
        )


def limits_of(deployment: Deployment) -> RunLimits:
    """Return which changes the run of a deployment allows."""
    spec = deployment.spec
    algorithm = spec.composed_algorithm
    sums = any(rule == "p" for _, rule in algorithm.reduce.values())
    return RunLimits(
        own_data=deployment.data is None,
        private=spec.privacy is not None,
        buffered=spec.buffer is not None,
        undeclared=type(spec.algorithm).__name__ if sums and not algorithm.population_sums else None,
    )


def initial_sums(algorithm: Algorithm, x: Tensor) -> dict[str, Tensor]:
    """Return the initial values of the server state that is a sum over all clients."""
    given = algorithm.init(x)
    return {name: given.get(name, torch.zeros_like(x)).cpu() for name in algorithm.population_sums}
