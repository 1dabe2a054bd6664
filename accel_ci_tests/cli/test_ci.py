"""Mistakes that `accel-ci ci` refuses before anything is built."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accel_ci.config.settings import Project
from accel_ci_tests.fixtures.project import Run, minimal_config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trigger", "pr"], "this job is for no pull request"),
        (["--report", "own.xml"], "--report and --suite belong together"),
        (["--suite", "own"], "--report and --suite belong together"),
        (["--report", "own.xml", "--suite", "unit"], "the build itself reports this suite"),
        (["--report", "own.xml", "--suite", "own", "--url", "http://127.0.0.1:9"], "needs exactly one --variant"),
        (["--variant", "py9"], "py9"),
        (["--variant", "py3", "--variant", "py4", "--trigger", "nightly"], "nightly have no variant py4, only py3"),
        (["--trigger", "confirm"], "'confirm' is not one of"),
    ],
    ids=" ".join,
)
def test_what_cannot_work_is_refused_at_once(
    accel_ci: Run, make_project: Callable[..., Project], options: list[str], message: str
) -> None:
    jobs = minimal_config()["jobs"]
    assert isinstance(jobs, dict)
    jobs["nightly"] = {**jobs["nightly"], "variants": ["py3"]}
    variant = {"python": "3.11", "torch": "torch", "runtime": "none"}
    project = make_project(variants=[{"name": "py3", **variant}, {"name": "py4", **variant}], jobs=jobs)
    done = accel_ci("ci", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not project.home.exists()
