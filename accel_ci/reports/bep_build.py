"""Bazel's events as a summary of the build itself: its end, its actions, the targets that failed to build, and why.

The tests' rows belong to `bep.py`. Only files below the folder `actions` beside the events are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from accel_ci.model import BazelActions

from .bep import below_folder, below_testlogs, is_cached, is_test_target, number_of
from .characters import Characters
from .detect import read_chunks_of
from .json_lines import Object, object_of, objects_of, read_objects
from .report import DEFAULT_LIMITS, ReadLimits
from .text import plain

_MESSAGE_CHARS = 8000
_OUT_OF_REACH = re.compile(
    r"remote spawn failed|UNAVAILABLE|UNAUTHENTICATED|PERMISSION_DENIED|DEADLINE_EXCEEDED|Remote Execution"
)
_REMOTE_KINDS = frozenset({"remoteExecution", "remoteOptions", "grpcServer"})


@dataclass
class TargetBuild:
    """A target: its last status, its logs below `testlogs`, and the message of what broke its build."""

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


def read_build(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> BuildSummary:
    """Read `bep.ndjson` in a folder; never raises for its content. The summary of a missing file is empty."""
    summary = BuildSummary()
    messages: dict[str, str] = {}
    roots: dict[str, list[str]] = {}
    for event in _events(folder / "bep.ndjson", limits):
        its_id = object_of(event, "id")
        kind = next(iter(its_id), "")
        label: Any = object_of(its_id, kind).get("label")
        if kind == "progress":
            text = object_of(event, "progress").get("stderr")
            lines = str(text).splitlines() if isinstance(text, str) else []
            summary.errors += [plain(line)[:500] for line in lines if line.startswith(("ERROR: ", "FATAL: "))]
        elif kind == "buildFinished":
            code = object_of(event, "finished", "exitCode")
            summary.exit_name, summary.exit_code = plain(str(code.get("name", "SUCCESS"))), number_of(code.get("code"))
        elif kind == "buildMetrics":
            summary.actions = _actions(object_of(event, "buildMetrics", "actionSummary"))
        elif isinstance(label, str) and label:
            if kind == "actionCompleted":
                messages[label] = _message(object_of(event, "action"), folder / "actions")
            else:
                target = summary.targets.setdefault(label, TargetBuild(label))
                _take(target, kind, event)
                if kind == "targetCompleted" and target.status in ("FAILED_TO_BUILD", "NO_STATUS"):
                    children = objects_of(event.get("children"))
                    roots[label] = [str(object_of(child, "actionCompleted").get("label")) for child in children]
    for label, roots_of in roots.items():
        target = summary.targets[label]
        found = next((messages[root] for root in (*roots_of, label) if messages.get(root)), None)
        target.message = found or target.message
    return summary


def _events(path: Path, limits: ReadLimits) -> Iterator[Object]:
    try:
        yield from read_objects(Characters(read_chunks_of(path), limits), limits)
    except OSError:
        return


def _take(target: TargetBuild, kind: str, event: Object) -> None:
    if kind == "targetConfigured":
        target.is_test |= is_test_target(event)
    elif kind == "targetCompleted":
        completed = object_of(event, "completed")
        if completed.get("success") is not True and "aborted" not in event:
            target.status = "FAILED_TO_BUILD"
            target.message = _failure(completed) or None
            kinds = object_of(completed, "failureDetail").keys()
            target.out_of_reach = bool(_REMOTE_KINDS & kinds) or bool(_OUT_OF_REACH.search(target.message or ""))
    elif kind == "testResult":
        result = object_of(event, "testResult")
        if result:
            target.status = plain(str(result.get("status", "NO_STATUS")))
            target.cached = is_cached(result)
            target.out_of_reach |= target.status == "REMOTE_FAILURE"
            target.logs[:0] = [log for output in objects_of(result.get("testActionOutput")) if (log := _log(output))]
    elif kind == "testSummary" and "aborted" not in event:
        target.status = plain(str(object_of(event, "testSummary").get("overallStatus", "NO_STATUS")))


def _log(output: Object) -> str | None:
    """The path of a log below `testlogs`; None for another output, or one that is elsewhere."""
    uri = output.get("uri")
    return below_testlogs(uri) if output.get("name") == "test.log" and isinstance(uri, str) else None


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
