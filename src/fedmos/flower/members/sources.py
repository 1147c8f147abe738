"""From which of its files a client starts a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .member_list import MemberList


@dataclass(frozen=True)
class StateSources:
    """What a request says about the state that a client starts from.

    Args:
        member_list: Returns the clients of the run; None for a run without changes.
        sums: The client state whose sums over all clients begin anew when importances change.
    """

    member_list: Callable[[], MemberList] | None = None
    sums: Sequence[str] = ()

    def header(self, last: int) -> dict[str, str]:
        """Return the fields of a request to a client that last took part in a round; negative for never.

        `stored` is the run id under which the client has stored its state, and `restart` names the part of it that
        begins anew; they are empty for the request's own run id, and for no part.
        """
        if self.member_list is None or last < 0:
            return {"stored": "", "restart": ""}
        member_list = self.member_list()
        stored = member_list.run_of(last)
        return {
            "stored": "" if stored == member_list.run else stored,
            "restart": ",".join(self.sums) if last < member_list.restarted else "",
        }
