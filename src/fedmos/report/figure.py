"""Line charts as plain SVG, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")  # Tol's bright scheme
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 40, 44
_WIDTH, _HEIGHT, _ROW = 760, 420, 18
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # colours come round again with the next of these
_INSIDE, _COLUMNS = 10, 4
"""So many names fit among the curves; more stand below them, in so many columns."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve and, if given, the band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def line_chart(lines: Sequence[Line], *, title: str, x: str, y: str, level: float | None = None) -> str:
    """An SVG document; `level` draws a dashed horizontal line."""
    width, height = _WIDTH, _HEIGHT
    below = _ROW * (-(len(lines) // -_COLUMNS) + 1) if len(lines) > _INSIDE else 0
    tall = height + below
    xs = [v for line in lines for v in line.x]
    ys = [v for line in lines for v in (*line.y, *line.low, *line.high)] + ([] if level is None else [level])
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
    x_low, x_high = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def px(v: float) -> float:
        return round(_LEFT + (v - x_low) / ((x_high - x_low) or 1) * (width - _LEFT - _RIGHT), 1)

    def py(v: float) -> float:
        return round(height - _BOTTOM - (v - y_low) / ((y_high - y_low) or 1) * (height - _TOP - _BOTTOM), 1)

    def path(a: Sequence[float], b: Sequence[float]) -> str:
        return " ".join(f"{px(u)},{py(v)}" for u, v in zip(a, b, strict=True))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" role="img" font-family="sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{tall}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" fill="#222">{escape(title)}</text>',
    ]
    for v in y_ticks:
        parts.append(f'<path d="M{_LEFT} {py(v)}H{width - _RIGHT}" stroke="#ddd"/>')
        parts.append(text(_LEFT - 8, py(v) + 4, f"{v:g}", "end"))
    parts += [text(px(v), height - _BOTTOM + 18, f"{v:g}", "middle") for v in x_ticks]
    parts.append(text((_LEFT + width - _RIGHT) / 2, height - 8, x, "middle"))
    parts.append(
        f'<text transform="translate(14 {height / 2:.0f}) rotate(-90)" font-size="12" fill="#444" '
        f'text-anchor="middle">{escape(y)}</text>'
    )
    if level is not None:
        parts.append(f'<path d="M{_LEFT} {py(level)}H{width - _RIGHT}" stroke="#222" stroke-dasharray="5 4"/>')
    # The legend goes where the curves do not end.
    ends_high = sum(py(line.y[-1]) for line in lines) / len(lines) < height / 2
    top = height - _BOTTOM - _ROW * len(lines) if ends_high else _TOP + _ROW
    for i, line in enumerate(lines):
        colour, dashes = COLOURS[i % len(COLOURS)], _DASHES[i // len(COLOURS) % len(_DASHES)]
        if line.low:
            band = path([*line.x, *reversed(line.x)], [*line.low, *reversed(line.high)])
            parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>')
        stroke = f'stroke="{colour}" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{path(line.x, line.y)}" fill="none" {stroke} stroke-width="2"/>')
        if below:
            column, row = _LEFT + i % _COLUMNS * (width - _LEFT) // _COLUMNS, height + _ROW * (i // _COLUMNS + 1)
        else:
            column, row = width - 200, top + _ROW * i
        parts.append(f'<path d="M{column} {row - 4}h22" {stroke} stroke-width="3"/>')
        parts.append(text(column + 28, row, line.label, "start"))
    return "\n".join([*parts, "</svg>\n"])


def text(x: float, y: float, words: str, anchor: str) -> str:
    """A label at a place."""
    return f'<text x="{x}" y="{y}" font-size="12" fill="#444" text-anchor="{anchor}">{escape(words)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover [low, high]."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = power * min((1, 2, 5, 10), key=lambda k: abs(k * power - span / 5))
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]
