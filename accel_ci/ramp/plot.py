"""Draw the trend of the shares as a small SVG, for places that show images: the Dagster UI and the HUD."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape

from accel_ci.config.settings import RampStage
from accel_ci.ramp.coverage import Counts, TrendPoint

_WIDTH, _HEIGHT, _LEFT, _EDGE = 640, 220, 44, 16
_LINES: tuple[tuple[str, str, Callable[[Counts], float]], ...] = (
    ("enabled", "#2f6fde", lambda counts: counts.share),
    ("passing", "#2e8b57", lambda counts: counts.passing_share),
)


def plot_trend(trend: Sequence[TrendPoint], stages: Sequence[RampStage]) -> str:
    """Return a `data:` address of the plot."""
    return f"data:image/svg+xml;base64,{base64.b64encode(draw_trend(trend, stages).encode()).decode()}"


def draw_trend(trend: Sequence[TrendPoint], stages: Sequence[RampStage]) -> str:
    """Return an SVG of the enabled and the passing share over time, with the shares of the stages as grid lines."""
    top = _top(max((point.counts.share for point in trend), default=0.0), stages)
    first, last = (trend[0].at, trend[-1].at) if trend else (None, None)
    span = (last - first).total_seconds() if first and last else 0.0

    def across(point: TrendPoint) -> float:
        passed = (point.at - trend[0].at).total_seconds() / span if span else 1.0
        return round(_LEFT + passed * (_WIDTH - _LEFT - _EDGE), 1)

    def down(share: float) -> float:
        return round(_HEIGHT - _EDGE - share / top * (_HEIGHT - 3 * _EDGE), 1)

    marks = [f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{down(0)}" y2="{down(0)}" stroke="#888"/>']
    for share in sorted({stage.share for stage in stages if 0 < stage.share <= top}):
        y = down(share)
        marks.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y}" y2="{y}" stroke="#888" stroke-dasharray="3 4"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>')
    for place, (name, color, value) in enumerate(_LINES):
        points = [(across(point), down(value(point.counts))) for point in trend]
        marks.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{_joined(points)}"/>')
        marks += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>' for x, y in points]
        now = f" {value(trend[-1].counts):.1%}" if trend else ""
        marks.append(f'<text x="{_LEFT + 8 + 130 * place}" y="{_EDGE + 2}" fill="{color}">{name}{now}</text>')
    dates = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}" if first and last else "no build yet"
    marks.append(f'<text x="{_WIDTH - _EDGE}" y="{_EDGE + 2}" text-anchor="end">{escape(dates)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#888">{"".join(marks)}</svg>'
    )


def _top(share: float, stages: Sequence[RampStage]) -> float:
    """The share at the top: that of the next stage, so that the distance to it is seen."""
    above = [stage.share for stage in stages if stage.share > share]
    return min(1.0, 1.15 * above[0]) if above else 1.0


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
