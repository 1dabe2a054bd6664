"""Tell the workers what a build's scope expects of tests."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from accel_ci.model import Artifact, ExpectedMode, WorkerSpec
from accel_ci.scope.apply import MUST_PASS
from accel_ci.scope.table import read_scope
from accel_ci.storage.artifacts import ArtifactStore


def with_modes(spec: WorkerSpec, scope: Artifact | None, artifacts: ArtifactStore) -> WorkerSpec:
    """Return the spec of workers that know the modes in a build's scope; None stands for a scope without any."""
    if scope is None:
        return spec
    wanted = ("suite", "test", "status", "reason", "rule", "mode")
    columns = read_scope(scope, artifacts).select(wanted).to_pydict()
    tests: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    rows: Any = zip(*(columns[name] for name in wanted), strict=True)
    for suite, test, status, reason, rule, mode in rows:
        if status == "enabled" and mode != MUST_PASS:
            tests[suite, mode, f"{rule}: {reason}"].append(test)
    sessions = dict(spec.sessions)
    for suite in {suite for suite, _, _ in tests} & sessions.keys():
        modes = (ExpectedMode(mode, words, tuple(some)) for (of, mode, words), some in tests.items() if of == suite)
        sessions[suite] = replace(sessions[suite], modes=tuple(modes))
    return replace(spec, sessions=sessions)
