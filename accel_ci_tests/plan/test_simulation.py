"""Nights simulated with the real planner and claim rule: nothing is lost, and all cards finish together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.nights import Night, bound_s, make_night
from benchmarks.plan_simulation import PEERS, Outcome, Simulation, main, plan_night


def simulate(night: Night, publish_s: float = 0.0) -> Outcome:
    return Simulation(night, plan_night(night), publish_s).run()


def small_night(seed: int = 1, deaths: float = 0.0, cards: int = 16) -> Night:
    return make_night(seed=seed, cards=cards, tests=3000, files=25, deaths=deaths)


def every_test_once(night: Night) -> Counter[str]:
    return Counter(
        f"test_{file:04}.py::test_{place}" for file, tests in enumerate(night["files"]) for place in range(len(tests))
    )


@pytest.mark.parametrize("publish_s", [0.0, 3.0])
@pytest.mark.parametrize("deaths", [0.0, 0.3])
def test_every_test_runs_to_its_end_once_although_cards_die(deaths: float, publish_s: float) -> None:
    night = small_night(deaths=deaths)
    assert any(night["dies_s"]) == bool(deaths)
    outcome = simulate(night, publish_s)
    assert outcome.ended == every_test_once(night)
    assert outcome.claims <= outcome.tried


def test_a_night_on_which_all_cards_die_lists_lost_tests() -> None:
    night = small_night(cards=2)
    night["dies_s"] = [200.0, 300.0]
    outcome = simulate(night)
    assert 0 < len(outcome.ended) < len(every_test_once(night))
    assert outcome.makespan_s <= 300


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_small_night_ends_near_the_lower_bound(seed: int) -> None:
    night = small_night(seed)
    assert 1 <= simulate(night).makespan_s / night["lower_bound_s"] < 1.05


def test_the_same_night_gives_the_same_result() -> None:
    first, second = small_night(seed=5, deaths=0.1), small_night(seed=5, deaths=0.1)
    assert first == second
    assert simulate(first, 3.0) == simulate(second, 3.0)


def test_the_planner_sees_nothing_of_tonight() -> None:
    night = small_night()
    blind: Night = {
        **night,
        "actual": [[0.0] * len(of_file) for of_file in night["actual"]],
        "ready_s": [0.0] * len(night["ready_s"]),
        "dies_s": [1.0] * len(night["dies_s"]),
        "lower_bound_s": 0.0,
    }
    assert plan_night(blind) == plan_night(night)


@pytest.mark.parametrize(
    ("ready_s", "durations", "expected"),
    [([1.0, 3.0], [4.0, 4.0], 6.0), ([1.0, 3.0], [1.0], 2.0), ([1.0, 3.0], [9.0, 1.0], 10.0), ([2.0], [1.0, 1.0], 4.0)],
)
def test_lower_bound_with_late_cards(ready_s: list[float], durations: list[float], expected: float) -> None:
    assert bound_s(ready_s, durations) == pytest.approx(expected)


@pytest.mark.parametrize("rule", PEERS)
def test_peers_run_every_test_and_never_beat_the_bound(rule: str) -> None:
    night = small_night()
    outcome = PEERS[rule](night)
    assert outcome.ended == every_test_once(night)
    assert outcome.makespan_s >= night["lower_bound_s"]


def test_a_peer_loses_what_a_dead_card_had() -> None:
    night = small_night(deaths=0.3)
    assert len(PEERS["static longest-first"](night).ended) < len(every_test_once(night))


def test_the_command_prints_json_and_fails_when_tests_are_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = small_night(), small_night(cards=2)
    bad["dies_s"] = [200.0, 300.0]
    for name, night in (("good", good), ("bad", bad)):
        (tmp_path / f"{name}.json").write_text(json.dumps(night))
    assert main([str(tmp_path / "good.json"), "--json", "--check"]) == 0
    [row] = json.loads(capsys.readouterr().out)["nights"]
    assert (row["cards"], row["lost_tests"], row["run_twice"]) == (16, 0, 0)
    assert main([str(tmp_path / "bad.json"), "--json"]) == 1
    assert "tests lost" in json.loads(capsys.readouterr().out)["missed"][0]


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_the_command_refuses_files_that_are_not_nights(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night.json").write_text(content)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "night.json")])
    assert "not a night" in capsys.readouterr().err
