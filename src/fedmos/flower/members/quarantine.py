"""Quarantine: a client whose replies are refused repeatedly is left out of cohorts for some rounds.

Who is in quarantine follows from the records of the run and from the operator's changes. So a resumed run, and one that
goes back to an earlier round, has the same quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ...core.history import Record


class Quarantine(NamedTuple):
    """The rule by which clients are left out.

    Args:
        refusals: After how many refusals in a row; "off" for never.
        rounds: For how many rounds; "off" until the operator releases the client.
    """

    refusals: int | Literal["off"] = "off"
    rounds: int | Literal["off"] = "off"

    def clients(self, history: Iterable[Record], cleared: Mapping[int, int]) -> set[int]:
        """Return the clients that are in quarantine in the round that follows the records.

        A client that is late, or whose node is refused before it is asked, does not count as refused: anyone can claim
        a name. A reply that is accepted ends the row.

        Args:
            history: The records of all rounds.
            cleared: The number of rounds after which a client begins anew, because of a change by the operator.
        """
        if self.refusals == "off":
            return set()
        in_row: dict[int, int] = {}
        until: dict[int, float] = {}
        done = 0
        for record in history:
            done = record.round
            refused = {int(i) for i in record.refused} - set(record.late)
            for i in set(record.cohort) | refused:
                if i in record.late or done <= cleared.get(i, 0):
                    continue
                in_row[i] = in_row.get(i, 0) + 1 if i in refused else 0
                if in_row[i] >= self.refusals:
                    in_row[i] = 0
                    until[i] = float("inf") if self.rounds == "off" else done + self.rounds
        return {i for i, last in until.items() if done < last}
