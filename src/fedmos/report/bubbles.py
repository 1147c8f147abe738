"""A split as a picture: a bubble for each client and class, its area the number of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .figure import COLOURS, text

_CELL, _LEFT, _TOP, _BOTTOM = 18, 64, 48, 52


def bubble_chart(counts: np.ndarray, clients: Sequence[int], total: int) -> str:
    """An SVG document; `counts` is (clients shown, classes), `clients` their numbers out of `total`."""
    columns, rows = counts.shape
    cell = max(4.0, min(_CELL, 900 / rows, 1400 / columns))
    width, height = max(360.0, _LEFT + cell * columns + 16), _TOP + cell * rows + _BOTTOM
    largest = max(1, int(counts.max()))
    shown = f"{len(clients)} of {total:,} clients" if len(clients) < total else f"{total:,} clients"
    title = f"Samples by client and class ({shown}; the largest bubble is {largest:,})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'font-family="sans-serif">',
        f"<title>{title}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="13" fill="#222">{title}</text>',
    ]
    for c in range(0, rows, max(1, round(12 / cell))):
        parts.append(text(_LEFT - 8, round(_TOP + (c + 0.7) * cell, 1), str(c), "end"))
    for i in range(0, columns, max(1, round(36 / cell))):
        parts.append(
            text(round(_LEFT + (i + 0.5) * cell, 1), round(height - _BOTTOM + 18, 1), str(clients[i]), "middle")
        )
    parts.append(text(round(_LEFT + cell * columns / 2, 1), round(height - 10, 1), "client", "middle"))
    middle = _TOP + cell * rows / 2
    parts.append(
        f'<text transform="translate(16 {middle:.0f}) rotate(-90)" font-size="12" fill="#444" text-anchor="middle">'
        "class</text>"
    )
    for i, c in np.argwhere(counts > 0):
        radius = cell / 2 * float(np.sqrt(counts[i, c] / largest))
        x, y = _LEFT + (i + 0.5) * cell, _TOP + (c + 0.5) * cell
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{max(radius, 0.6):.1f}" fill="{COLOURS[c % len(COLOURS)]}">'
            f"<title>client {clients[i]}, class {c}: {counts[i, c]:,}</title></circle>"
        )
    return "\n".join([*parts, "</svg>\n"])
