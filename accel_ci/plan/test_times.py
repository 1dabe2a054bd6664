"""First estimates from a file of test times in PyTorch's format, for files of tests that have never run here.

PyTorch's harness cuts its shards by such a file (`.pytorch-test-times.json`, and `test-times.json` as it is published). Its
times are those of another device, so recorded durations always come before them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from accel_ci.config.settings import UPSTREAM_TESTS

_DEEPEST = 2  # of the levels above files: job and configuration
_FORMAT = "the file has {file: seconds}, or that for each configuration, or for each job and configuration"


def parse_test_times(content: Any, device: str) -> dict[str, float]:
    """Return the seconds of each file, named as in the document: `nn/test_pooling`, below `test/` and without `.py`.

    Of several jobs or configurations, that with the name of the device counts, else `default`, else the median of all.
    Raises `ValueError` for a document that is not of the format.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for file, each in _leaves(content, device, "", 0):
        seconds[file.removesuffix(".py")].append(each)
    if not seconds:
        raise ValueError(f"it names no file; {_FORMAT}")
    return {file: median(known) for file, known in seconds.items()}


def _leaves(content: Any, device: str, where: str, depth: int) -> Iterator[tuple[str, float]]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{where or 'it'} is no JSON object; {_FORMAT}")
    nested = [key for key, value in content.items() if isinstance(value, Mapping)]
    if nested and len(nested) == len(content) and depth < _DEEPEST:
        for key in [key for key in (device, "default") if key in content][:1] or nested:
            yield from _leaves(content[key], device, f"{where}{key!r}: ", depth + 1)
        return
    for file, value in content.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{where}{file!r}: {value!r} is no number of seconds; {_FORMAT}")
        yield str(file), float(value)


def seconds_per_test(times: Mapping[str, float], files: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return the mean seconds of a test by (suite, file), where the times are known; `files` has one entry for each test."""
    tests: dict[tuple[str, str], int] = defaultdict(int)
    for key in files:
        tests[key] += 1
    names = {(suite, file): file.removeprefix(f"{UPSTREAM_TESTS}/test/").removesuffix(".py") for suite, file in tests}
    return {key: times[name] / tests[key] for key, name in names.items() if name in times}
