"""The columns of clients' tables, which must be the same in the same order: the model reads its inputs by position."""

from __future__ import annotations

from .wire import RefusedError


class InputColumns:
    """Compares the columns of clients' tables with those of the server's test samples, or else with each other.

    Args:
        expected: The hash of the columns of the server's test samples; empty if they are no table.
    """

    def __init__(self, expected: str = "") -> None:
        self._expected = expected
        self._accepted: dict[str, str] = {}

    def check(self, name: str, found: str) -> None:
        """Check a client's hash of its columns; an empty one is that of a client that names its inputs itself.

        Raises:
            RefusedError: If the server, or else a client that was accepted before, has other columns.
        """
        if not found:
            return
        others = {other: known for other, known in self._accepted.items() if other != name}
        other = next((other for other, known in others.items() if known != found), None)
        whose = f"client '{other}'"
        if self._expected:
            other, whose = found if found != self._expected else None, "the server's test samples"
        if other is not None:
            raise RefusedError(
                f"the columns of client '{name}' are not those of {whose}: their names, order or numbers of categories "
                "differ, see `fedmos deploy try`; name the columns in their order as 'inputs' in the configuration's "
                "[data.arguments], or in the client's own [data]"
            )
        self._accepted[name] = found
