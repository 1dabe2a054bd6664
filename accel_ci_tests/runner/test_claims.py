"""Claims: one worker wins each batch, and the claim has its name at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accel_ci.rounds.claim_record import ClaimRecord


def test_one_owner_wins_each_batch(tmp_path: Path) -> None:
    records = [(ClaimRecord(tmp_path), f"w{number}") for number in range(8)]
    batches = [f"b{number}" for number in range(50)]
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda own: [batch for batch in batches if own[0].take(batch, own[1])], records))
    assert sorted(batch for mine in won for batch in mine) == sorted(batches)
    taken = ClaimRecord(tmp_path).taken()
    assert {batch: f"w{number}" for number, mine in enumerate(won) for batch in mine} == taken
