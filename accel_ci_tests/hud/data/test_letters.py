"""Verdicts and durations as letters."""

from __future__ import annotations

import numpy as np
import pytest

from accel_ci.hud.data.letters import LETTERS, letters_of_seconds
from accel_ci.hud.data.names import WORST_FIRST
from accel_ci.model import VERDICTS


def test_every_verdict_has_a_letter_and_a_rank() -> None:
    assert set(LETTERS) == set(VERDICTS) == set(WORST_FIRST)
    assert len(set(LETTERS.values())) == len(VERDICTS)


@pytest.mark.parametrize(
    ("seconds", "letter"), [(0, "#"), (0.001, "#"), (0.002, "'"), (1.0, "K"), (8.3, "W"), (10_000, "~"), (-1, " ")]
)
def test_a_duration_has_a_letter(seconds: float, letter: str) -> None:
    assert letters_of_seconds(np.array([seconds, np.nan])).tobytes().decode() == f"{letter} "


def test_durations_are_known_within_nine_percent() -> None:
    seconds = np.geomspace(0.001, 5000, 5000)
    letters = letters_of_seconds(seconds)
    assert not set(letters.tobytes().decode()) & set('\\" ')
    levels = letters.astype(float) - 35 - (letters > ord("\\"))
    assert np.abs(0.001 * 2 ** (levels / 4) / seconds - 1).max() < 0.0906
