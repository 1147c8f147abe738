"""The clients of a run: their numbers, and the changes that took effect since its start.

The member list is the file members.json of the run folder, which the server writes while it holds the folder's lock.
What follows from it, such as who is retired since when, is computed from the changes in it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.files import replace_file
from ..client_folder import RUN_ID
from .changes import Change, Order

_FILE = "members.json"
_FORMAT = 1
_WEIGHING = ("retire", "admit", "samples")
"""The changes after which clients have other importances."""
_RESTARTING = (*_WEIGHING, "reset")
"""The changes after which sums of client state over all clients are not known."""


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """Which changes a run allows.

    Args:
        own_data: Whether clients have data of their own, instead of a part of the configuration's.
        private: Whether the run has `privacy`.
        buffered: Whether the run has `buffer`.
        undeclared: An algorithm whose sums over all clients are not declared; None for none.
    """

    own_data: bool = True
    private: bool = False
    buffered: bool = False
    undeclared: str | None = None

    def check(self, change: Change) -> None:
        """Refuse a change that the run cannot have.

        Raises:
            ValueError: If it cannot.
        """
        why = self._why_not(change)
        if why is not None:
            raise ValueError(f"Cannot {_verb(change)} because {why}")

    @property
    def can_retire(self) -> bool:
        """Whether clients can be retired."""
        return self._why_not(Change(kind="retire", client="any")) is None

    def _why_not(self, change: Change) -> str | None:
        weighing = change.kind in _WEIGHING
        if self.buffered and change.kind != "release":
            return "clients train across rounds with 'buffer'; use synchronous rounds, or start a new run"
        if change.kind in ("admit", "samples") and not self.own_data:
            return "the configuration's data is divided among its clients; start a new run with another configuration"
        if self.private and (weighing or change.kind == "rollback"):
            return "the noise and ε of 'privacy' are computed for the clients and rounds of this run; start a new run"
        if change.kind in _RESTARTING and self.undeclared is not None:
            return (
                f"{self.undeclared} sums uploads over all clients (rule 'p') and does not declare which server state "
                "that is; declare 'population_sums'"
            )
        return None


class Applied(NamedTuple):
    """A change that took effect, and after how many rounds; None until that is known."""

    number: int
    change: Change
    after: int | None


class RunPart(NamedTuple):
    """The id under which clients store their state from a round on. Changes begin a new one."""

    run: str
    since: int | None
    """None until that is known."""


@dataclass(frozen=True, kw_only=True)
class MemberList:
    """The clients of a run, in the order of their numbers."""

    initial: Sequence[str]
    """The names at the start of the run."""
    parts: Sequence[RunPart]
    applied: Sequence[Applied] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why changes have no effect, by number."""
    limits: RunLimits = field(default_factory=RunLimits)

    @property
    def names(self) -> list[str]:
        """The names of all clients, also of those that are retired."""
        return [*self.initial, *(str(done.change.client) for done in self._of("admit"))]

    @property
    def retired(self) -> dict[int, int | None]:
        """The clients that are retired, and after how many rounds."""
        return {self._number(done): done.after for done in self._of("retire")}

    @property
    def samples(self) -> dict[int, int]:
        """The numbers of samples that were agreed during the run."""
        return {self._number(done): int(done.change.samples or 0) for done in self._of("admit", "samples")}

    @property
    def keys(self) -> dict[str, str]:
        """The fingerprints of the keys of admitted clients."""
        return {str(done.change.client): done.change.key for done in self._of("admit") if done.change.key}

    @property
    def restarted(self) -> int:
        """After how many rounds sums of client state over all clients began anew last; 0 if never."""
        return max((done.after or 0 for done in self._of(*_RESTARTING)), default=0)

    @property
    def cleared(self) -> dict[int, int]:
        """After how many rounds a change concerned a client last: earlier refusals do not count."""
        return {self._number(done): done.after or 0 for done in self.applied if done.change.client is not None}

    @property
    def run(self) -> str:
        """The current run id."""
        return self.parts[-1].run

    @property
    def handled(self) -> set[int]:
        """The numbers of the changes that took effect or were refused."""
        return {done.number for done in self.applied} | set(self.refused)

    def run_of(self, t: int) -> str:
        """Return the run id of a round."""
        return [part.run for part in self.parts if (part.since or 0) <= t][-1]

    def changes_after(self, t: int) -> list[Change]:
        """Return the changes that took effect after t rounds or later."""
        return [done.change for done in self.applied if done.after is not None and done.after >= t]

    def check(self, change: Change) -> None:
        """Check that a change can take effect.

        Raises:
            ValueError: If it cannot.
        """
        self.limits.check(change)
        if change.kind == "rollback":
            return
        names, name = self.names, change.client
        if change.kind == "admit":
            taken = next((other for other in names if other.lower() == str(name).lower()), None)
            if taken is not None:
                hint = "; a client that comes back gets a new name" if names.index(taken) in self.retired else ""
                raise ValueError(f"Cannot admit '{name}' because there is a client '{taken}'{hint}")
            return
        if name not in names:
            raise ValueError(f"Cannot {_verb(change)} because the run has no such client; its clients: {_some(names)}")
        if names.index(str(name)) in self.retired:
            raise ValueError(f"Cannot {_verb(change)} because it is retired")
        if change.kind == "retire" and len(self.retired) + 1 == len(names):
            raise ValueError(f"Cannot {_verb(change)} because no client would be left; stop the run instead")

    def with_orders(self, orders: Sequence[Order]) -> MemberList:
        """Return the member list with further changes, whose `after` is not known yet."""
        member_list = self
        for order in orders:
            try:
                member_list.check(order.change)
            except ValueError as error:
                member_list = replace(member_list, refused={**member_list.refused, order.number: str(error)})
            else:
                member_list = replace(member_list, applied=(*member_list.applied, Applied(*order, None)))
        return member_list

    def dated(self, t: int) -> MemberList:
        """Return the member list in which further changes take effect after t rounds, as does what was later."""
        applied = [done._replace(after=_earlier(done.after, t)) for done in self.applied]
        since = {_earlier(part.since, t): part.run for part in self.parts}  # of several parts, the last one
        return replace(self, applied=applied, parts=[RunPart(run, at) for at, run in since.items()])

    def without(self, number: int, reason: str) -> MemberList:
        """Return the member list without a change that turned out to be impossible."""
        applied = [done for done in self.applied if done.number != number]
        return replace(self, applied=applied, refused={**self.refused, number: reason})

    def with_part(self) -> MemberList:
        """Return the member list with a new run id for the next rounds.

        Clients answer a request of a round once. After a change, a round that they have answered is another one.
        """
        return replace(self, parts=[*self.parts, RunPart(secrets.token_hex(16), None)])

    def _of(self, *kinds: str) -> list[Applied]:
        return [done for done in self.applied if done.change.kind in kinds]

    def _number(self, done: Applied) -> int:
        return self.names.index(str(done.change.client))

    def write(self, folder: Path) -> None:
        """Write the member list atomically into a run folder."""
        content = {
            "format": _FORMAT,
            "clients": list(self.initial),
            "runs": [list(part) for part in self.parts],
            "applied": [{"number": d.number, "after": d.after, "change": d.change.encode()} for d in self.applied],
            "refused": {str(number): reason for number, reason in self.refused.items()},
            "limits": asdict(self.limits),
        }
        replace_file(folder / _FILE, json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, folder: Path) -> MemberList | None:
        """Read the member list of a run folder; None if there is none yet.

        Raises:
            ValueError: If the file is damaged.
        """
        path = folder / _FILE
        try:
            return cls._decode(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"Cannot use the run in {folder} because {path} is damaged ({error}); restore the file from a backup"
            ) from None

    @classmethod
    def _decode(cls, content: Any) -> MemberList:
        if content["format"] != _FORMAT:
            raise ValueError(f"it is of format {content['format']!r}, and this fedmos reads {_FORMAT}")
        parts = [RunPart(str(run), int(since)) for run, since in content["runs"]]
        if not parts or parts[0].since != 0 or not all(RUN_ID.fullmatch(part.run) for part in parts):
            raise ValueError("its run ids are invalid")
        member_list = cls(initial=[str(name) for name in content["clients"]], parts=parts)
        for done in content["applied"]:
            change = Change.decode(done["change"])
            member_list.check(change)
            applied = Applied(int(done["number"]), change, int(done["after"]))
            member_list = replace(member_list, applied=(*member_list.applied, applied))
        refused = {int(number): str(reason) for number, reason in content["refused"].items()}
        return replace(member_list, refused=refused, limits=RunLimits(**content["limits"]))


def _earlier(after: int | None, t: int) -> int:
    return t if after is None else min(after, t)


def _verb(change: Change) -> str:
    """Describe what a change does, for errors."""
    if change.kind == "rollback":
        return f"go back to round {change.round}"
    if change.kind == "samples":
        return f"accept {change.samples} samples of '{change.client}'"
    return f"{change.kind} '{change.client}'"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
