"""Bazel's events as a summary of the build itself: its end, its actions, the targets that failed to build, and why.

The tests' rows belong to `bep.py`. Only files below the folder `actions` beside the events are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from accel_ci.model import BazelActions

from .bep import (
    BuildEvents,
    Target,
    below_folder,
    below_testlogs,
    by_configuration,
    is_cached,
    number_of,
    outcome_of,
    status_of,
    take,
)  # fmt: skip
from .characters import Characters
from .detect import read_chunks_of
from .json_lines import Object, object_of, objects_of, read_objects
from .report import DEFAULT_LIMITS, SEVERITY
from .text import plain

_MESSAGE_CHARS = 8000
_OUT_OF_REACH = re.compile(
    r"remote spawn failed|UNAVAILABLE|UNAUTHENTICATED|PERMISSION_DENIED|DEADLINE_EXCEEDED|Remote Execution"
)
_REMOTE_KINDS = frozenset({"remoteExecution", "remoteOptions", "grpcServer"})


@dataclass
class TargetBuild:
    """A target: its worst status in any configuration, its logs below `testlogs`, the message of what broke its build."""

    label: str
    status: str = "NO_STATUS"
    is_test: bool = False
    cached: bool = False
    logs: list[str] = field(default_factory=list)
    message: str | None = None
    out_of_reach: bool = False


@dataclass
class BuildSummary:
    """The summary of a build. `exit_name` is Bazel's name for its exit status, None when the events end before it."""

    exit_name: str | None = None
    exit_code: int | None = None
    actions: BazelActions = field(default_factory=lambda: BazelActions(0, 0, 0, 0))
    targets: dict[str, TargetBuild] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if Bazel reported its end."""
        return self.exit_name is not None


def read_build(folder: Path) -> BuildSummary:
    """Read `bep.ndjson` in a folder; never raises for its content. The summary of a missing file is empty."""
    summary, build = BuildSummary(), BuildEvents()
    messages: dict[str, str] = {}
    roots: dict[str, list[str]] = {}
    for event in _events(folder / "bep.ndjson"):
        take(build, event)
        its_id = object_of(event, "id")
        kind = next(iter(its_id), "")
        label = str(object_of(its_id, kind).get("label"))
        if kind == "progress":
            text = object_of(event, "progress").get("stderr")
            lines = text.splitlines() if isinstance(text, str) else []
            summary.errors += [plain(line)[:500] for line in lines if line.startswith(("ERROR: ", "FATAL: "))]
        elif kind == "buildFinished":
            code = object_of(event, "finished", "exitCode")
            summary.exit_name, summary.exit_code = plain(str(code.get("name", "SUCCESS"))), number_of(code.get("code"))
        elif kind == "buildMetrics":
            summary.actions = _actions(object_of(event, "buildMetrics", "actionSummary"))
        elif kind == "actionCompleted":
            messages[label] = _message(object_of(event, "action"), folder / "actions")
        elif kind == "targetCompleted":
            children = objects_of(event.get("children"))
            roots[label] = [str(object_of(child, "actionCompleted").get("label")) for child in children]
    for label, targets in build.targets.items():
        message = next((messages[root] for root in (*roots.get(label, ()), label) if messages.get(root)), None)
        summary.targets[label] = _target(label, by_configuration(targets).values(), label in build.tests, message)
    return summary


def _events(path: Path) -> Iterator[Object]:
    try:
        yield from read_objects(Characters(read_chunks_of(path), DEFAULT_LIMITS), DEFAULT_LIMITS)
    except OSError:
        return


def _target(label: str, configured: Collection[Target], is_test: bool, message: str | None) -> TargetBuild:
    """A target in all its configurations; the worst status counts."""
    results = [result for target in configured for result in target.results.values()]
    failed = [target.facts["failed"] for target in configured if "failed" in target.facts]
    messages = [_failure(payload) for payload in failed]
    status = min(map(_status, configured), key=lambda status: SEVERITY[outcome_of(status)])
    outputs = [output for result in reversed(results) for output in objects_of(result.get("testActionOutput"))]
    logs = [below_testlogs(output.get("uri")) for output in outputs if output.get("name") == "test.log"]
    lost = any(result.get("status") == "REMOTE_FAILURE" for result in results) or any(map(_OUT_OF_REACH.search, messages))
    lost |= any(_REMOTE_KINDS & object_of(payload, "failureDetail").keys() for payload in failed)
    cached = bool(results) and all(map(is_cached, results))
    message = message or next(filter(None, messages), None)
    return TargetBuild(label, status, is_test, cached, list(filter(None, logs)), message, lost)


def _status(target: Target) -> str:
    if "summary" in target.facts:
        return status_of(target.facts["summary"].get("overallStatus"))
    statuses = [status_of(result.get("status")) for result in target.results.values()]
    return statuses[-1] if statuses else "FAILED_TO_BUILD" if "failed" in target.facts else "NO_STATUS"


def _message(action: Object, actions: Path) -> str:
    """The output of a failed action, else Bazel's message."""
    for stream in ("stderr", "stdout"):
        uri = object_of(action, stream).get("uri")
        path = below_folder(actions, unquote(uri).rpartition("/")[2]) if isinstance(uri, str) and uri else None
        if path is not None:
            with path.open("rb") as file:
                text = file.read(_MESSAGE_CHARS).decode("utf-8", "replace").strip()
            if text:
                return plain(text)
    return _failure(action)


def _failure(payload: Object) -> str:
    message = object_of(payload, "failureDetail").get("message")
    return plain(message)[:_MESSAGE_CHARS] if isinstance(message, str) else ""


def _actions(summary: Object) -> BazelActions:
    runners = {str(one.get("name")): number_of(one.get("count")) or 0 for one in objects_of(summary.get("runnerCount"))}
    remote_hits = sum(count for name, count in runners.items() if name.endswith("cache hit"))
    executed = sum(count for name, count in runners.items() if name not in ("total", "internal")) - remote_hits
    local_hits = number_of(object_of(summary, "actionCacheStatistics").get("hits")) or 0
    return BazelActions(number_of(summary.get("actionsCreated")) or 0, executed, local_hits, remote_hits)
