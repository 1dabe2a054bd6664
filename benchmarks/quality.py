"""The quality engine: whose failures it says they are, under injected faults, and whether it names bad cards.

    python -m benchmarks.quality [--json] [--seeds 20] [--nights 30]

`benchmarks.quality_faults` shows each kind of fault and the wrong answers.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import click
import numpy as np

from accel_ci.quality.places import Place, PlaceCount, bad_places
from benchmarks.quality_faults import measure

CARDS, ATTEMPTS, RATE = 24, 800, 0.01


def name_cards(nights: int = 30, good: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Name a card that fails three times as often as others, and none of 1,000 good ones, over some nights."""
    rng = np.random.default_rng(seed)

    def counts(cards: int, bad: int | None) -> list[PlaceCount]:
        found = []
        for card in range(cards):
            failed = int(rng.poisson(ATTEMPTS * RATE * (3 if card == bad else 1)))
            found.append(PlaceCount(Place("card", str(card)), ATTEMPTS, failed, failed, ATTEMPTS * RATE))
        return found

    needed = []
    for _ in range(20):
        seen: list[list[PlaceCount]] = []
        while not any(each.place.name == "7" for each in bad_places(seen)):
            seen.append(counts(CARDS, 7))
        needed.append(len(seen))
    seen, wrong = [], set()
    for _ in range(nights):
        seen = [*seen[-5:], counts(good, None)]
        wrong |= {each.place.name for each in bad_places(seen)}
    return {
        "nights_to_name_a_bad_card": float(np.median(needed)),
        "most_nights_to_name_a_bad_card": max(needed),
        "good_cards": good,
        "good_cards_named": len(wrong),
    }


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=30)
    given = parser.parse_args()
    began = time.perf_counter()
    score, _ = measure(given.seeds, given.nights, show=(lambda _: None) if given.json else click.echo)
    found = {**score.summary(), **name_cards(given.nights), "seconds": round(time.perf_counter() - began, 1)}
    if given.json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        click.echo(f"{name:40} {value}")


if __name__ == "__main__":
    main()
