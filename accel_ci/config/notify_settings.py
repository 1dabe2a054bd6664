"""The section `notify`: who is told about troubles, where and when."""

from __future__ import annotations

from datetime import time
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from accel_ci.config.section import Section
from accel_ci.config.values import AbsolutePath, EnvironmentName, Name

TroubleCause = Literal["infra", "flaky", "upstream", "backend", "unknown", "run", "silence"]
"""The cause of an incident, or a run or check of Dagster that failed, or something that did not happen in time."""

Severity = Literal["info", "warning", "failure"]


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError("must be a time zone of the IANA database, such as 'Europe/Berlin'") from None
    return value


class QuietHours(Section):
    """The hours of each day in which nothing is sent: from `begin` to `end`, which may be on the next day."""

    begin: time
    end: time
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"


class Route(Section):
    """A way to some people: messages on troubles that match go there.

    The addresses are apprise URLs, separated by spaces or lines, in the environment variable `urls_from` or in the file
    `urls_file`: they hold secrets. A trouble matches if its cause is one of `causes` and, with `owners`, its owner matches
    one of these patterns. It is told once it has `least_tests` tests, if it has any, and `least_severity`: `info` for flaky
    tests, `warning` for upstream and unknown causes, `failure` for the rest. Messages wait for the end of the `quiet` hours,
    and `digest_minutes` for others that are then sent with them.
    """

    urls_from: EnvironmentName | None = None
    urls_file: AbsolutePath | None = None
    causes: Annotated[tuple[TroubleCause, ...], Field(min_length=1)] = (
        "infra", "flaky", "upstream", "backend", "unknown", "run", "silence",
    )  # fmt: skip
    owners: tuple[str, ...] = ()
    least_tests: Annotated[int, Field(ge=1)] = 1
    least_severity: Severity = "info"
    quiet: QuietHours | None = None
    digest_minutes: Annotated[float, Field(ge=0, le=10080)] = 0

    @model_validator(mode="after")
    def _one_source(self) -> Route:
        if (self.urls_from is None) == (self.urls_file is None):
            raise ValueError("needs either urls_from, the name of a variable, or urls_file")
        return self


class Issues(Section):
    """The issues in the repository of the section `github`: one for each incident of these causes with so many tests.

    At most `a_day` are opened in a day (UTC); the incidents over that are listed in one more. Each issue has the `labels`;
    the first tells accel-ci's issues from others, so that it must be for these alone.
    """

    causes: Annotated[tuple[Literal["infra", "flaky", "upstream", "backend", "unknown"], ...], Field(min_length=1)] = (
        "backend", "upstream", "infra",
    )  # fmt: skip
    least_tests: Annotated[int, Field(ge=1)] = 1
    a_day: Annotated[int, Field(ge=1, le=100)] = 5
    labels: Annotated[tuple[Annotated[str, Field(pattern=r"\A[^,\s][^,]{0,49}\z")], ...], Field(min_length=1)] = (
        "accel-ci incident",
    )


class Silence(Section):
    """The silences that count as trouble.

    They are: a nightly that has not started `start_minutes` after its time, or has no ledger `end_hours` after it; a sensor
    or schedule that failed `failed_ticks` times in a row; and no build whose tests ran for `outage_hours`.
    """

    start_minutes: Annotated[float, Field(gt=0)] = 60
    end_hours: Annotated[float, Field(gt=0)] = 12
    failed_ticks: Annotated[int, Field(ge=1, le=100)] = 5
    outage_hours: Annotated[float, Field(gt=0)] = 24


class Settled(Section):
    """The number of revisions in a row that must not show an incident before it counts as over, by its cause.

    A flaky test that fails every third night is one trouble, and not a new one each time.
    """

    infra: Annotated[int, Field(ge=1)] = 3
    flaky: Annotated[int, Field(ge=1)] = 7
    upstream: Annotated[int, Field(ge=1)] = 1
    backend: Annotated[int, Field(ge=1)] = 1
    unknown: Annotated[int, Field(ge=1)] = 3


class Notify(Section):
    """The routes by name, in the order in which they are tried: a message goes to the first one that matches.

    With `enabled`, sensors start with the daemon and look every `check_every_seconds`.
    """

    routes: dict[Name, Route] = {}
    issues: Issues | None = None
    silence: Silence = Silence()
    settled: Settled = Settled()
    enabled: bool = False
    check_every_seconds: Annotated[int, Field(ge=5)] = 60
