"""Colours and labels that all SVG figures share."""

from __future__ import annotations

from html import escape

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")  # Tol's bright scheme


def label(x: float, y: float, words: str, anchor: str) -> str:
    """Return a text element at (x, y); `anchor` is "start", "middle" or "end"."""
    return f'<text x="{x}" y="{y}" font-size="12" fill="#444" text-anchor="{anchor}">{escape(words)}</text>'


def vertical_label(x: float, y: float, words: str) -> str:
    """Return a text element around (x, y) that reads from bottom to top."""
    return (
        f'<text transform="translate({x:.0f} {y:.0f}) rotate(-90)" font-size="12" fill="#444" text-anchor="middle">'
        f"{escape(words)}</text>"
    )


def document(width: float, height: float, title: str, left: float, size: int, parts: list[str]) -> str:
    """Return an SVG document on white: the title in letters of `size`, `left` from the edge, then the parts."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            'font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            f'<text x="{left}" y="22" font-size="{size}" fill="#222">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )
