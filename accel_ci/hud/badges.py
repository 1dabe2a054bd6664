"""Make badges for READMEs: the state of the newest build, the enabled share, and the share of flaky tests."""

from __future__ import annotations

from html import escape

from accel_ci.hud.grid import GridPage
from accel_ci.hud.states import Kind
from accel_ci.hud.text import percent
from accel_ci.quality.flakiness import Flakiness

_GOOD, _WARN, _BAD, _NONE = "#2e7d32", "#9a6700", "#b3261e", "#5f6b7a"
_CHARACTER, _PADDING, _HEIGHT = 6.6, 7, 20
_FLAKY_LIMIT = 0.05
"""The share of flaky tests that PyTorch's accelerator group allows."""
_WORST_LAST: dict[Kind, str] = {
    "passed": _GOOD, "flaky": _GOOD, "stopped": _WARN, "incomplete": _WARN, "unreadable": _WARN, "failed": _BAD,
}  # fmt: skip
"""The states of builds with their colors."""


def badges_of(page: GridPage, flakiness: Flakiness) -> dict[str, str]:
    """Return the SVG of each badge by its file name."""
    states = [cell.state for cell in page.rows[0].cells if cell.state.kind in _WORST_LAST] if page.rows else []
    worst = max(states, key=lambda state: list(_WORST_LAST).index(state.kind), default=None)
    state = (worst.words, _WORST_LAST[worst.kind]) if worst else ("no build", _NONE)
    total = page.coverage[0].total if page.coverage else None
    enabled = (percent(total.share), _GOOD if total.share else _NONE) if total else ("unknown", _NONE)
    tests = len({(each.suite, each.test) for each in flakiness.flaky})
    share = tests / flakiness.tests if flakiness.tests else None
    flaky = ("unknown", _NONE) if share is None else (percent(share), _GOOD if share < _FLAKY_LIMIT else _BAD)
    return {
        "badge-state.svg": badge(page.project, *state),
        "badge-enabled.svg": badge("tests enabled", *enabled),
        "badge-flaky.svg": badge("flaky tests", *flaky),
    }


def badge(label: str, value: str, color: str) -> str:
    """Return a badge: a label, and a value on a color."""
    left, right = (len(text) * _CHARACTER + 2 * _PADDING for text in (label, value))
    whole, middle = left + right, _HEIGHT / 2 + 4
    words = escape(f"{label}: {value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:.0f}" height="{_HEIGHT}" role="img" aria-label="{words}">'
        f'<title>{words}</title><clipPath id="r"><rect width="{whole:.0f}" height="{_HEIGHT}" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left:.0f}" height="{_HEIGHT}" fill="#3b4450"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="{_HEIGHT}" fill="{color}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:.1f}" y="{middle}">{escape(label)}</text>'
        f'<text x="{left + right / 2:.1f}" y="{middle}">{escape(value)}</text></g></svg>\n'
    )
