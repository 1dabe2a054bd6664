"""Check the output of `accel-ci status --json`: the sums must be exact, and all tests pass. Print where the time went."""

from __future__ import annotations

import json
import sys


def main(start: str) -> None:
    """Check the build on standard input. `start` names it in messages."""
    status = json.load(sys.stdin)
    verdicts = dict(status["verdicts"])
    expected = verdicts.pop("expected")
    if expected < 650 or expected != sum(verdicts.values()):
        sys.exit(f"{start} nightly: {expected} tests expected, the verdicts are {verdicts}")
    if verdicts["infra"] or verdicts["not_run"]:
        sys.exit(f"{start} nightly: tests were lost: {verdicts}")
    if status["state"] != "passed":
        sys.exit(f"{start} nightly: {status['state']}: {verdicts}")
    print(
        f"{start} nightly: {expected} tests accounted for; wall {status['wall_s']:.1f} s, own overhead "
        f"{status['overhead_s']:.1f} s, makespan {status['makespan_s']:.1f} s, of it set-up {status['setup_s']:.1f} s; "
        f"lower bound {status['lower_bound_s']:.1f} s, the rest of the makespan is {status['ratio']:.2f} times that"
    )


if __name__ == "__main__":
    main(sys.argv[1])
