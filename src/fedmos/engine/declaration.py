"""Validation of an algorithm's declarations."""

from __future__ import annotations

from typing import Any

from ..algorithm import RULES, Algorithm


def check_declaration(algorithm: Algorithm) -> None:
    """Check that the declarations of an algorithm are consistent."""
    owner = type(algorithm).__name__
    for reduce, up in ((algorithm.reduce, algorithm.up), (algorithm.prepare_reduce, algorithm.prepare_up)):
        for name, (upload, rule) in reduce.items():
            if upload not in up:
                raise ValueError(f"{owner}: the sum '{name}' must be of one of {', '.join(up)}, got {upload!r}")
            if rule not in RULES:
                raise ValueError(f"{owner}: the rule of sum '{name}' must be one of {', '.join(RULES)}, got {rule!r}")
    for name in ("server_state", "client_state", "down", "up", "prepare_up"):
        if isinstance(getattr(algorithm, name), str):
            raise ValueError(f"{owner}: '{name}' must be a tuple of names, got {getattr(algorithm, name)!r}")
    known = {name for name, _ in shapes(algorithm.server_state, 0)}
    if type(algorithm).broadcast is Algorithm.broadcast and not known >= set(algorithm.down) - {"x"}:
        missing = ", ".join(sorted(set(algorithm.down) - {"x"} - known))
        raise ValueError(f"{owner}: 'down' must name server state unless 'broadcast' makes it, got {missing}")
    for name in algorithm.prepare_reduce:
        if name not in known:
            raise ValueError(f"{owner}: 'prepare_reduce' must name server state, got {name!r}")


def shapes(names: Any, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and shape of each declared server state: (size,), or (rows, size) for (name, rows)."""
    return [(n, (size,)) if isinstance(n, str) else (n[0], (n[1], size)) for n in names]
