"""Read the data of the pages on tests as the pages do, by the formats that `accel_ci/hud/data/update.py` describes."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Told:
    """A test in a build: its letter, the attempts and the character of its duration where they are told, and a reason."""

    letter: str
    attempts: Any = None
    seconds: str = " "
    reason: str | None = None


Key = tuple[str, str, str, str]
"""Suite, test, revision and variant."""


def content(site: Path, name: str) -> str:
    """The content of a script."""
    script = (site / "data" / f"{name}.js").read_text()
    start = f'accelCi("{name}","'
    assert script.startswith(start)
    assert script.endswith('")\n')
    return zlib.decompress(base64.b64decode(script[len(start) : -3], validate=True)).decode()


def read_all(site: Path) -> dict[Key, Told]:
    """Every result that the data tell."""
    index, found = json.loads(content(site, "index")), dict[Key, Told]()
    for week, buckets, _, builds in index["weeks"]:
        for bucket in range(buckets):
            found |= _read_bucket(index, json.loads(content(site, f"tests/{week}/{bucket:03x}")), builds, bucket, buckets)
    return found


def _read_bucket(index: Any, records: Any, builds: Any, bucket: int, buckets: int) -> dict[Key, Told]:
    names: dict[str, list[str]] = {}
    bases: dict[tuple[str, int], tuple[str, dict[str, str]]] = {}
    told: dict[str, tuple[dict[int, list[Any]], str]] = {}
    for kind, *record in records:
        if kind == "tests":
            names.setdefault(record[0], []).extend(record[1])
        elif kind == "base":
            bases[record[0], record[1]] = record[2], record[3]
        else:
            assert kind == "build"
            assert record[0] not in told
            told[record[0]] = {place: rest for place, *rest in record[1]}, record[2]
    found = {}
    for suite, tests in names.items():
        assert len(tests) == len(set(tests))
        assert all(zlib.crc32(f"{suite}/{test}".encode()) % buckets == bucket for test in tests)
    for name, revision, variant, suite_number, _, base in builds:
        suite = index["suites"][suite_number]
        letters, reasons = bases.get((suite, base), ("", {}))
        exceptions, seconds = told.get(name, ({}, ""))
        for place, test in enumerate(names.get(suite, [])):
            usual = letters[place] if place < len(letters) else "-"
            letter, *attempts = exceptions.get(place, [usual])
            if letter != "-":
                key = suite, test, index["revisions"][revision][0], index["variants"][variant]
                found[key] = Told(
                    letter, attempts[0] if attempts else None, seconds[place] if place < len(seconds) else " ",
                    reasons.get(str(place)) if letter == usual else None,
                )  # fmt: skip
    return found


def read_names(site: Path) -> list[str]:
    """All addresses, in order."""
    files = sorted((site / "data" / "names").glob("*.js"), key=lambda path: int(path.stem))
    lines = [line for path in files for line in content(site, f"names/{path.stem}").split("\n")]
    return [json.loads('"{}"'.format(line.replace('"', '\\"'))) for line in lines]


def read_states(site: Path) -> dict[str, str]:
    """The letter of each address."""
    _, letters = json.loads(content(site, "states"))
    return dict(zip(read_names(site), letters, strict=True))
