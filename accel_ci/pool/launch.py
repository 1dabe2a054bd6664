"""What workers are started with: the interpreter, the sources, the environment and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits in seconds.

    `test_timeout_s` is for one test with its fixtures, `silence_s` for a pytest that neither prints nor reports,
    `startup_s` for a pytest's start and for the collection of a file, `probe_timeout_s` for a health probe.
    """

    test_timeout_s: float = 60
    silence_s: float = 300
    startup_s: float = 300
    probe_timeout_s: float = 120


@dataclass(frozen=True)
class Launch:
    """How a worker is started.

    `python` is the interpreter of the runtime image, `root` the folder that node ids are relative to. `environment` is
    all that a worker and its tests see (`accel_ci.pool.environment.clean_environment` makes it); `card_environment`
    names the variable that tells a process its card. `probe` is the argv of the health probe, empty for none, where a
    first word `python` stands for the worker's interpreter. `pytest_args` go to every pytest.
    """

    python: str
    root: str
    environment: Mapping[str, str]
    card_environment: str
    probe: tuple[str, ...] = ()
    pytest_args: tuple[str, ...] = ()
