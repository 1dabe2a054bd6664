"""Draw the failures of the last revisions by cause as a small SVG, for places that show images."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from accel_ci.quality.versions import Cause

_COLORS: dict[Cause, str] = {  # Okabe and Ito's palette, which the colour-blind can tell apart
    "backend": "#d55e00", "upstream": "#cc79a7", "infra": "#0072b2", "flaky": "#e69f00", "unknown": "#8a8a8a",
}  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 200, 44, 16
_MOST = 60
"""The number of revisions shown."""


def plot_causes(nights: Sequence[tuple[str, Mapping[Cause, int]]]) -> str:
    """Return a `data:` address of the plot of (revision, failures by cause), the oldest first."""
    return f"data:image/svg+xml;base64,{base64.b64encode(draw_causes(nights).encode()).decode()}"


def draw_causes(nights: Sequence[tuple[str, Mapping[Cause, int]]]) -> str:
    """Return an SVG with a stacked bar for each revision, and the newest numbers in the legend."""
    nights = nights[-_MOST:]
    top = max((sum(counts.values()) for _, counts in nights), default=0) or 1
    step = (_WIDTH - _LEFT - _EDGE) / max(1, len(nights))
    floor, room = _HEIGHT - _EDGE, _HEIGHT - 3 * _EDGE
    marks = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{floor}" y2="{floor}" stroke="#888"/>',
        f'<text x="{_LEFT - 6}" y="{floor - room + 4}" text-anchor="end">{top:,}</text>',
    ]
    for place, (revision, counts) in enumerate(nights):
        y = float(floor)
        words = ", ".join(f"{counts[cause]:,} {cause}" for cause in _COLORS if counts.get(cause)) or "no failure"
        bars = []
        for cause, color in _COLORS.items():
            height = counts.get(cause, 0) / top * room
            y -= height
            if height:
                x, width = _LEFT + place * step, max(1.0, step - 2)
                bars.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>')
        marks.append(f"<g><title>{escape(revision)}: {words}</title>{''.join(bars)}</g>")
    newest = nights[-1][1] if nights else {}
    for place, (cause, color) in enumerate(_COLORS.items()):
        x = _LEFT + 110 * place
        marks.append(f'<rect x="{x}" y="4" width="10" height="10" fill="{color}"/>')
        marks.append(f'<text x="{x + 14}" y="13">{cause} {newest.get(cause, 0):,}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#888">{"".join(marks)}</svg>'
    )
