"""Line charts as plain SVG, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.svg import COLOURS, document, label, vertical_label

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 40, 44
_WIDTH, _HEIGHT, _ROW = 760, 420, 18
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")  # the next pattern is used when the colours start again
_INSIDE, _COLUMNS = 10, 4
"""A legend of up to `_INSIDE` entries lies among the curves; a longer one lies below them, in `_COLUMNS` columns."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve and, if `low` and `high` are given, the band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


class _Scale:
    """Data coordinates to pixels, and the ticks of both axes."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x_ticks, self.y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
        self._x_low, x_high = min(self.x_ticks[0], min(xs)), max(self.x_ticks[-1], max(xs))
        self._y_low, y_high = min(self.y_ticks[0], min(ys)), max(self.y_ticks[-1], max(ys))
        self._x_span, self._y_span = (x_high - self._x_low) or 1, (y_high - self._y_low) or 1

    def x(self, v: float) -> float:
        return round(_LEFT + (v - self._x_low) / self._x_span * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, v: float) -> float:
        return round(_HEIGHT - _BOTTOM - (v - self._y_low) / self._y_span * (_HEIGHT - _TOP - _BOTTOM), 1)

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{self.x(u)},{self.y(v)}" for u, v in zip(xs, ys, strict=True))


def line_chart(lines: Sequence[Line], *, title: str, x: str, y: str, level: float | None = None) -> str:
    """Return an SVG document.

    Args:
        lines: The curves, at least one, each with at least one point.
        title: Heading of the figure.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        level: Value of a dashed horizontal line, e.g. the target.
    """
    xs = [v for line in lines for v in line.x]
    ys = [v for line in lines for v in (*line.y, *line.low, *line.high)] + ([] if level is None else [level])
    scale = _Scale(xs, ys)
    parts = _axes(scale, x, y)
    if level is not None:
        parts.append(f'<path d="M{_LEFT} {scale.y(level)}H{_WIDTH - _RIGHT}" stroke="#222" stroke-dasharray="5 4"/>')
    for i, (line, place) in enumerate(zip(lines, _legend(lines, scale), strict=True)):
        colour, dashes = COLOURS[i % len(COLOURS)], _DASHES[i // len(COLOURS) % len(_DASHES)]
        parts += _curve(line, scale, colour, dashes, place)
    below = _ROW * (-(len(lines) // -_COLUMNS) + 1) if len(lines) > _INSIDE else 0
    return document(_WIDTH, _HEIGHT + below, title, _LEFT, 15, parts)


def _axes(scale: _Scale, x: str, y: str) -> list[str]:
    parts = []
    for v in scale.y_ticks:
        parts.append(f'<path d="M{_LEFT} {scale.y(v)}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(label(_LEFT - 8, scale.y(v) + 4, f"{v:g}", "end"))
    parts += [label(scale.x(v), _HEIGHT - _BOTTOM + 18, f"{v:g}", "middle") for v in scale.x_ticks]
    parts.append(label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x, "middle"))
    parts.append(vertical_label(14, _HEIGHT / 2, y))
    return parts


def _legend(lines: Sequence[Line], scale: _Scale) -> list[tuple[int, int]]:
    """Return the position of every entry: below the curves if there are many, else where the curves do not end."""
    if len(lines) > _INSIDE:
        width = _WIDTH - _LEFT
        return [
            (_LEFT + i % _COLUMNS * width // _COLUMNS, _HEIGHT + _ROW * (i // _COLUMNS + 1)) for i in range(len(lines))
        ]
    ends_high = sum(scale.y(line.y[-1]) for line in lines) / len(lines) < _HEIGHT / 2
    top = _HEIGHT - _BOTTOM - _ROW * len(lines) if ends_high else _TOP + _ROW
    return [(_WIDTH - 200, top + _ROW * i) for i in range(len(lines))]


def _curve(line: Line, scale: _Scale, colour: str, dashes: str, place: tuple[int, int]) -> list[str]:
    """Return the band, the curve and its entry in the legend."""
    parts = []
    if line.low:
        band = scale.points([*line.x, *reversed(line.x)], [*line.low, *reversed(line.high)])
        parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>')
    stroke = f'stroke="{colour}" stroke-dasharray="{dashes}"'
    parts.append(f'<polyline points="{scale.points(line.x, line.y)}" fill="none" {stroke} stroke-width="2"/>')
    x, y = place
    parts.append(f'<path d="M{x} {y - 4}h22" {stroke} stroke-width="3"/>')
    parts.append(label(x + 28, y, line.label, "start"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover [low, high]."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = power * min((1, 2, 5, 10), key=lambda k: abs(k * power - span / 5))
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]
