"""What a selector reads by name in a view; undeclared names are errors that say what to declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from torch import Tensor

from ..core.validation import suggest
from ..selection.selector import Selector, View
from .named_tensors import UnknownNameError


class ReportsByName(dict[str, Tensor]):
    """`view.reported`, or the argument `reports` of `thin`: the reports that the selector declares."""

    def __init__(self, selector: Selector, reports: Mapping[str, Tensor], source: str = "view.reported") -> None:
        super().__init__(reports)
        self._owner, self._source = type(selector).__name__, source

    def __missing__(self, name: Any) -> NoReturn:
        declared = f"{', '.join(self) or 'nothing'}{suggest(str(name), self)}"
        raise UnknownNameError(f"{self._owner}: there is no {self._source}[{name!r}]; 'reports' declares {declared}")


class StateByName(dict[str, Tensor]):
    """`view.state`: the state that the selector has stored so far; it starts empty."""

    def __init__(self, selector: Selector, state: dict[str, Tensor]) -> None:
        super().__init__(state)
        self._owner, self._declared = type(selector).__name__, tuple(selector.state)

    def __missing__(self, name: Any) -> NoReturn:
        where = f"{self._owner}: there is no view.state[{name!r}]"
        if name in self._declared:
            raise UnknownNameError(f"{where} yet, because state starts empty; use view.state.get({name!r}, …)")
        declared = ", ".join(self._declared) or "nothing"
        raise UnknownNameError(f"{where}; 'state' declares {declared}{suggest(str(name), self._declared)}")


class UndeclaredUpdates(Mapping[int, Tensor]):
    """`view.updates` for a selector that does not declare that it reads them."""

    def __init__(self, selector: Selector) -> None:
        self._owner = type(selector).__name__

    def _refuse(self) -> NoReturn:
        raise UnknownNameError(
            f"{self._owner}: there is no view.updates because the server stores them only for selectors that declare "
            "it; set updates = True in the class"
        )

    def __getitem__(self, client: int) -> Tensor:
        self._refuse()

    def __contains__(self, client: object) -> bool:
        self._refuse()

    def __iter__(self) -> Iterator[int]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


class _OnRead:
    """A field of a view that is computed when a selector reads it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: RunView, owner: type) -> Any:
        value = vars(view)[self._name] = view._gather(self._name)
        of_clients = (
            () if isinstance(value, UndeclaredUpdates) else value.values() if isinstance(value, Mapping) else (value,)
        )
        view._read += [(v, v._version) for v in of_clients]
        return value


class RunView(View):
    """The view of a run. What it says of clients is gathered when the selector reads it: many read little."""

    p: Any = _OnRead()
    n: Any = _OnRead()
    reported: Any = _OnRead()
    last: Any = _OnRead()
    picks: Any = _OnRead()
    durations: Any = _OnRead()
    updates: Any = _OnRead()

    def __init__(self, gather: Callable[[str], Any] | None = None, **fields: Any) -> None:
        """`gather`: returns a field that is not among `fields`, by its name."""
        vars(self).update(fields)
        self._gather: Any = gather
        self._read: list[tuple[Tensor, int]] = []
        """The tensors that were read, with their versions at that time."""

    @property
    def N(self) -> int:
        return (self.p if self.ids is None or "p" in vars(self) else self.ids).shape[0]

    @property
    def changed(self) -> bool:
        """Whether a tensor has been changed in place after it was read."""
        return any(v._version != version for v, version in self._read)


def known_updates(view: View) -> list[Tensor]:
    """Return the updates that a view offers."""
    return [] if isinstance(view.updates, UndeclaredUpdates) else list(view.updates.values())
