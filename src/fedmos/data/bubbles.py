"""Draw a split: one bubble per client and class, its area the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ..core.svg import COLOURS, document, label, vertical_label

_CELL, _LEFT, _TOP, _BOTTOM = 18, 64, 48, 52


def bubble_chart(counts: np.ndarray, clients: Sequence[int], total: int, names: Sequence[str] | None = None) -> str:
    """Return an SVG document.

    Args:
        counts: Samples per drawn client and class, (len(clients), classes).
        clients: Numbers of the drawn clients.
        total: Number of clients of the federation.
        names: The names of all clients, for the bubbles' tooltips.
    """
    columns, classes = counts.shape
    cell = max(4.0, min(_CELL, 900 / classes, 1400 / columns))
    width, height = max(360.0, _LEFT + cell * columns + 16), _TOP + cell * classes + _BOTTOM
    drawn = f"{len(clients)} of {total:,} clients" if len(clients) < total else f"{total:,} clients"
    title = f"Samples by client and class ({drawn}; the largest bubble is {max(1, int(counts.max())):,})"
    parts = [
        label(_LEFT - 8, round(_TOP + (c + 0.7) * cell, 1), str(c), "end")
        for c in range(0, classes, max(1, round(12 / cell)))
    ]
    parts += [
        label(round(_LEFT + (i + 0.5) * cell, 1), round(height - _BOTTOM + 18, 1), str(clients[i]), "middle")
        for i in range(0, columns, max(1, round(36 / cell)))
    ]
    parts.append(label(round(_LEFT + cell * columns / 2, 1), round(height - 10, 1), "client", "middle"))
    parts.append(vertical_label(16, _TOP + cell * classes / 2, "class"))
    tooltips = [str(i) if names is None else names[i] for i in clients]
    return document(width, height, title, _LEFT, 13, parts + _bubbles(counts, tooltips, cell))


def _bubbles(counts: np.ndarray, clients: Sequence[str], cell: float) -> list[str]:
    largest = max(1, int(counts.max()))
    bubbles = []
    for i, c in np.argwhere(counts > 0):
        radius = cell / 2 * float(np.sqrt(counts[i, c] / largest))
        x, y = _LEFT + (i + 0.5) * cell, _TOP + (c + 0.5) * cell
        bubbles.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{max(radius, 0.6):.1f}" fill="{COLOURS[c % len(COLOURS)]}">'
            f"<title>client {escape(clients[i])}, class {c}: {counts[i, c]:,}</title></circle>"
        )
    return bubbles
