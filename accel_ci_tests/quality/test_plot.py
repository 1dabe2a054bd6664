"""The plot of failures by cause is a whole SVG whose bars have the heights of its numbers."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from accel_ci.quality.plot import draw_causes

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_stacked_and_as_high_as_their_numbers() -> None:
    root = ET.fromstring(
        draw_causes([("night <1>", {"backend": 30, "infra": 10}), ("night 2", {}), ("night 3", {"flaky": 20})])
    )
    nights = root.findall(f"{SVG}g")
    titles = [night.findtext(f"{SVG}title") for night in nights]
    assert titles == ["night <1>: 30 backend, 10 infra", "night 2: no failure", "night 3: 20 flaky"]
    bars = [
        [(float(bar.attrib["y"]), float(bar.attrib["height"])) for bar in night.findall(f"{SVG}rect")] for night in nights
    ]
    (backend, infra), nothing, (flaky,) = bars
    assert nothing == []
    assert backend[1] == pytest.approx(3 * infra[1], abs=0.2)
    assert flaky[1] == pytest.approx(2 * infra[1], abs=0.2)
    assert infra[0] + infra[1] == pytest.approx(backend[0], abs=0.2), "infra stands on backend"
    assert backend[0] + backend[1] == pytest.approx(flaky[0] + flaky[1], abs=0.2), "all stand on the floor"


@pytest.mark.parametrize(
    "nights", [[], [("only", {"unknown": 1})], [(str(number), {"infra": number}) for number in range(100)]]
)
def test_any_number_of_revisions_fits(nights: list[tuple[str, dict[str, int]]]) -> None:
    root = ET.fromstring(draw_causes(nights))  # type: ignore[arg-type]
    for bar in root.iter(f"{SVG}rect"):
        assert 0 <= float(bar.attrib["x"]) <= 640
        assert 0 <= float(bar.attrib["y"]) <= 200
