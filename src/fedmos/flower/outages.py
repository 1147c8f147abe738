"""Outages: while too few clients can be reached, the server waits, and the round goes on when they are back.

A round that waits is not lost: its cohort, its model and the replies that have arrived stay. Clients that did not reply
are asked again. So an outage changes the time that a run takes and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from .channel import ConnectedNode, OutageError
from .members.changes import MembersChangedError
from .reply_collector import ReplyCollector

_log = logging.getLogger("fedmos")

_LOG_INTERVAL = 60.0
"""Seconds between two lines of the log during an outage."""
_FIRST_PAUSE, _LONGEST_PAUSE, _BACKOFF = 1.0, 15.0, 1.5
"""Seconds between two looks at the clients during an outage, which grow by a factor."""
_STOP_INTERVAL = 1.0
"""Seconds, at most, until a signal that ends the process is noticed."""
_LONGEST_RETRY = 300.0
"""Seconds, at most, before clients that are connected and did not reply are asked again."""
_CONTINUE = "start the run again (fedmos deploy start) to continue it"
_RETIRE = f"{_CONTINUE}; retire clients that do not come back before (fedmos deploy retire)"
_UNKNOWN_RUN = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
"""What a SuperLink answers to an app whose run it does not know."""


class PatientGrid:
    """A Flower grid without clients while the SuperLink cannot be reached, in place of an error.

    Args:
        grid: The grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.failure: str | None = None
        """Why the SuperLink did not answer the last call; None if it did."""

    def get_nodes(self) -> Iterable[ConnectedNode]:
        """Return the connected nodes."""
        return self._call(self._grid.get_nodes, (), [])

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]:
        """Send messages; returns the id of each, empty for a message that was not accepted."""
        return self._call(self._grid.push_messages, (messages,), [""] * len(messages))

    def pull_messages(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""
        return self._call(self._grid.pull_messages, (message_ids,), [])

    def _call(self, method: Any, arguments: tuple[Any, ...], otherwise: list[Any]) -> Iterable[Any]:
        """Call a method of the grid; returns `otherwise` if the SuperLink cannot be reached.

        Raises:
            OutageError: If the SuperLink does not know this run.
        """
        try:
            result = list(method(*arguments))
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _UNKNOWN_RUN:
                raise OutageError(
                    "Cannot go on because the SuperLink does not know this run any more, as after a restart without "
                    "--database; start the run again (fedmos deploy start) with the same 'out' to continue it"
                ) from None
            self._note(error)
            return otherwise
        except httpx.TransportError as error:
            self._note(error)
            return otherwise
        self.failure = None
        return result

    def _note(self, error: httpx.HTTPError) -> None:
        if self.failure is None:
            _log.warning("Cannot reach the SuperLink: %s", error)
        self.failure = str(error) or type(error).__name__


@dataclass
class OutageWatch:
    """Waits for clients during outages.

    Args:
        collector: The exchange of messages with clients.
        limit: Seconds that an outage can take; None for no limit.
        changed: Whether the operator has changed the clients.
        can_retire: Whether the operator can retire clients of this run.
    """

    collector: ReplyCollector
    limit: float | None
    changed: Callable[[], bool] = lambda: False
    can_retire: bool = True

    def begin(self, purpose: str, advice: str = "") -> Outage:
        """Begin to wait.

        Args:
            purpose: What waits, for the log: "Round 3".
            advice: What the operator can do about clients that do not come back, in place of retiring them.
        """
        return Outage(self, purpose, advice or (_RETIRE if self.can_retire else _CONTINUE))


@dataclass
class Outage:
    """One outage: from a request that too few clients answered until enough have."""

    watch: OutageWatch
    purpose: str
    advice: str
    started: float = field(default_factory=lambda: monotonic())
    _logged: float = float("-inf")
    _retry: float = _FIRST_PAUSE

    def wait(self, missing: Collection[int], needed: int) -> None:
        """Wait until so many of the missing clients are connected again.

        Raises:
            OutageError: If the outage takes longer than the limit.
            MembersChangedError: If the operator has changed the clients. The round is played again with the new ones.
        """
        pause, ask_at, collector = _FIRST_PAUSE, math.inf, self.watch.collector
        while True:
            collector.refresh_nodes()
            collector.monitor.wait(self.purpose, missing, needed)
            back = collector.registry.connected.intersection(missing)
            if self._expired():
                raise OutageError(self._sentence(missing))
            self._log(missing, needed)
            if self.watch.changed():
                raise MembersChangedError
            if len(back) >= needed:
                ask_at = min(ask_at, monotonic() + self._retry)
                if monotonic() >= ask_at:
                    self._retry = min(2 * self._retry, _LONGEST_RETRY)
                    collector.registry.expect(missing)
                    return
            self._pause(min(max(pause, collector.poll), ask_at - monotonic()))
            pause = min(_BACKOFF * pause, _LONGEST_PAUSE)

    def end(self) -> None:
        """Note that enough clients have answered."""
        self.watch.collector.monitor.go_on()
        _log.warning("%s goes on after an outage of %.0f s", self.purpose, monotonic() - self.started)

    def _pause(self, seconds: float) -> None:
        """Sleep; a process that is asked to end does so within a second.

        Raises:
            StopRequested: If it is.
        """
        end = monotonic() + seconds
        while (rest := end - monotonic()) > 0:
            sleep(min(rest, _STOP_INTERVAL))
            self.watch.collector.stop.check()

    def _expired(self) -> bool:
        return self.watch.limit is not None and monotonic() - self.started > self.watch.limit

    def _log(self, missing: Collection[int], needed: int) -> None:
        if monotonic() - self._logged < _LOG_INTERVAL:
            return
        self._logged = monotonic()
        limit = "without a limit" if self.watch.limit is None else f"for at most {self.watch.limit:g} s"
        _log.warning(
            "%s waits for %d of these clients, since %.0f s and %s: %s",
            self.purpose,
            needed,
            monotonic() - self.started,
            limit,
            self._names(missing),
        )

    def _sentence(self, missing: Collection[int]) -> str:
        return (
            f"Cannot go on with {self.purpose[0].lower()}{self.purpose[1:]} because these clients did not answer for "
            f"{monotonic() - self.started:.0f} s, over the 'outage_limit' of {self.watch.limit:g} s: "
            f"{self._names(missing)}; {self.advice}"
        )

    def _names(self, missing: Collection[int]) -> str:
        registry = self.watch.collector.registry
        return ", ".join(registry.absence(i) for i in sorted(missing)[:20])
