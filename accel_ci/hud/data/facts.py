"""The facts that the quality engine knows of tests: flake rates, quarantine, incidents. Few tests have any.

They are in `<site>/data/facts/<bucket>.js`, and written anew each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from accel_ci.hud.data.scripts import write_script
from accel_ci.hud.data.suite_week import bucket_of
from accel_ci.hud.text import first_line
from accel_ci.quality.flakiness import Flakiness
from accel_ci.quality.incidents import Incident
from accel_ci.quality.quarantine import Entry
from accel_ci.redaction import redact, redact_bytes

_TESTS_PER_BUCKET = 64
_MOST_BUCKETS = 4096


def write_facts(site: Path, flakiness: Flakiness, entries: Sequence[Entry], incidents: Sequence[Incident]) -> int:
    """Write the facts, and return the number of buckets, which follows from the number of tests that have any."""
    tests: defaultdict[tuple[str, str], defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for each in flakiness.flaky:
        rate = [each.rate, each.rate_low, each.rate_high]
        told = [each.variant, *(round(share, 6) for share in rate), each.flaky_builds, each.builds]
        tests[each.suite, each.test]["flaky"].append(told)
    for entry in entries:
        held = [entry.variant, entry.state, entry.by, entry.since.isoformat(), entry.expires.isoformat(), entry.reason]
        tests[entry.suite, entry.test]["quarantine"].append([*held, entry.owner])
    for incident in incidents:
        now = {key[1:] for key in incident.now} if incident.state != "fixed" else set()
        for identity in sorted({key[1:] for key in incident.tests}):
            tests[identity]["incidents"].append([incident.id, identity in now])
    known = {one.id: [one.cause, one.state, redact(first_line(one.title)), one.first, one.last] for one in incidents}
    buckets = min(_MOST_BUCKETS, 1 << max(0, (len(tests) - 1) // _TESTS_PER_BUCKET).bit_length())
    content: list[dict[str, Any]] = [{"tests": {}, "incidents": {}} for _ in range(buckets)]
    for identity in sorted(tests):
        facts, suite, test = tests[identity], redact(identity[0]), redact(identity[1])
        part = content[bucket_of(suite, test, buckets)]
        part["tests"][f"{suite}/{test}"] = facts
        part["incidents"] |= {name: known[name] for name, _ in facts.get("incidents", ())}
    for number, part in enumerate(content):
        write_script(site / "data", f"facts/{number:03x}", redact_bytes(msgspec.json.encode(part, order="sorted")))
    for script in (site / "data" / "facts").glob("*.js"):
        if int(script.stem, 16) >= buckets:
            script.unlink()
    return buckets
