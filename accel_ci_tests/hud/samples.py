"""A believable history of builds for the HUD's tests, laid on disk by the stores themselves. No assertion is in here."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import yaml

from accel_ci.config.loading import parse_settings
from accel_ci.config.settings import Project
from accel_ci.hud.records import BuildRecord
from accel_ci.model import (
    VERDICTS,
    Artifact,
    Attempt,
    BazelActions,
    BazelTestResults,
    Build,
    CardReport,
    CheckResult,
    DeviceTestResults,
    Ledger,
    Outcome,
    Revision,
    RoundReport,
    RuntimeImage,
    Source,
    SourceBuild,
    SuiteSelection,
    TestPlan,
    TestSelection,
    TestVerdict,
    Trigger,
    Verdict,
    Wheel,
)
from accel_ci.pipelines import STAGES
from accel_ci.quality.causes import Blame
from accel_ci.quality.current_quarantine import QUARANTINE, QuarantineState
from accel_ci.quality.flakiness import Flakiness, FlakyTest
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import INCIDENTS, Causes, Incidents, JudgedRevision
from accel_ci.quality.levels import Job, judge_levels
from accel_ci.quality.places import BadPlace, Place, PlaceCount
from accel_ci.quality.quarantine import Debt, Entry
from accel_ci.quality.report import REPORT
from accel_ci.quality.trends import TRENDS, SlowerTest, Trends, WorseTest
from accel_ci.quality.versions import Cause, Evidence
from accel_ci.ramp.coverage import Counts, Coverage, CoverageReport, TrendPoint
from accel_ci.ramp.current import COVERAGE
from accel_ci.results.store import ResultsStore
from accel_ci.storage.manifests import ManifestStore
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stored_attempts import write_attempts

NOW = datetime(2026, 11, 27, 8, 30, tzinfo=timezone.utc)
GREEN = ("passed", "flaky")
"""The states of a build that passes."""

VARIANTS = ("py311-torch2.13-emu", "py312-torchmain-emu")
HOSTILE = "tests/pytorch/test_ops.py::test_<script>document.title='owned'</script>\"'[\u202egnp.exe\x1b[31m\x00]"
HOSTILE_MESSAGE = "</pre><img src=x onerror=alert(1)><script>alert(2)</script>\nE   AssertionError: \u2066{{ 7 * 7 }}"
LONG = "tests/pytorch/test_long.py::test_long[" + "x" * 10_000 + "-end]"
_NOTHING = Artifact("0" * 64, "none.json", 2)
_OPS = (
    "add", "addmm", "bmm", "conv2d", "cumsum", "einsum", "gather", "index_select", "layer_norm", "linalg_solve",
    "logsumexp", "matmul", "scatter", "softmax", "topk",
)  # fmt: skip
_MESSAGES = (
    "AssertionError: Tensor-likes are not close!\n\nMismatched elements: 3 / 400 (0.8%)\n"
    "Greatest absolute difference: 0.015625 at index (3, 17) (up to 1e-05 allowed)",
    "RuntimeError: \"linalg_solve_emu\" not implemented for 'Half'",
    "NotImplementedError: Could not run 'aten::_fft_r2c' with arguments from the 'PrivateUse1' backend.",
)


def workspace_of(home: Path, name: str = "torch_emu") -> Workspace:
    """The workspace of a data folder, of a backend of that name."""
    settings = parse_settings(yaml.safe_dump(minimal_config()))
    backend = settings.backend.model_copy(update={"name": name})
    return Workspace(Project(settings.model_copy(update={"backend": backend}), home / "accel_ci.yaml", home))


def ledger(counts: dict[Verdict, int], expected: int | None = None, **changes: Any) -> Ledger:
    """A ledger of these counts, complete unless told otherwise."""
    full = dict.fromkeys(VERDICTS, 0) | counts
    whole = Ledger(
        build=Build("nightly-20261127", VARIANTS[0]),
        expected=sum(full.values()) if expected is None else expected,
        counts=full,
        suites=dict.fromkeys(("integration", "pytorch"), full),
        missing_suites=(),
        unexpected=(),
        infra_attempts=0,
        makespan_s=342.0,
        lower_bound_s=301.5,
        setup_s=9.25,
    )
    return replace(whole, **changes)


def record(account: Ledger | None, day: int = 27, variant: str = VARIANTS[0], **changes: Any) -> BuildRecord:
    """The manifests of a nightly build: with all stages if it has a ledger, else up to the smoke tests."""
    present = STAGES if account else STAGES[:3]
    return replace(BuildRecord(Build(f"nightly-202611{day}", variant), present, changed_at=NOW, ledger=account), **changes)


def wheel_with(*checks: CheckResult) -> Wheel:
    """A wheel with these checks."""
    nothing = Artifact("0" * 64, "none.whl", 2)
    return Wheel("torch_emu", "1.0", nothing, nothing, checks, False, 1.0)


def verdicts(counts: dict[Verdict, int], shift: int = 0) -> list[TestVerdict]:
    """Verdicts that add up to these counts; the failures include a hostile and a very long test name."""
    made: list[TestVerdict] = []
    for verdict in ("failed", "flaky", "infra", "not_run", "skipped", "xfailed", "xpassed", "passed"):
        for index in range(counts.get(verdict, 0)):
            number = len(made) + shift
            name = f"test_{_OPS[number % 15]}_emu_float{16 << number % 3}[case{number}]"
            test = f"tests/pytorch/test_ops.py::TestCommonEMU::{name}"
            message = _MESSAGES[number % 3] if verdict in ("failed", "flaky") else None
            if verdict == "failed" and index < 2:
                test, message = ((HOSTILE, HOSTILE_MESSAGE), (LONG, "timed out"))[index]
            outcomes: dict[Verdict, tuple[Outcome, ...]] = {"failed": ("failed", "failed"), "flaky": ("failed", "passed")}
            if verdict == "infra":
                message = "the card emu1 failed its health probe: checksum of 4 MiB copy differs"
            made.append(
                TestVerdict(
                    suite="integration" if number % 9 == 0 else "pytorch",
                    test=test,
                    verdict=verdict,
                    attempts=outcomes.get(verdict, ("passed",)) if verdict != "not_run" else (),
                    duration_s=None if verdict == "not_run" else 0.02 + (number * 7919 % 997) ** 2 / 30_000,
                    cards=("emu0", "emu1") if verdict in outcomes else ("emu0",),
                    message=message,
                )
            )
    return made


def attempts_of(verdict: TestVerdict) -> list[Attempt]:
    """Attempts that amount to a verdict."""
    infra = verdict.message if verdict.verdict == "infra" else None
    outcomes: tuple[Outcome, ...] = ("not_run",) if verdict.verdict == "not_run" else verdict.attempts
    if verdict.verdict in ("skipped", "xfailed", "xpassed"):
        outcomes = (verdict.verdict,)
    return [
        Attempt(
            verdict.suite, verdict.test, number, "failed" if infra else outcome, None, verdict.duration_s,
            verdict.message if outcome != "passed" or infra else None, None, verdict.cards[0], "host", "w0-0", infra,
        )
        for number, outcome in enumerate(outcomes, 1)
    ]  # fmt: skip


def results(cards: tuple[CardReport, ...], makespan_s: float, failed: int = 0) -> DeviceTestResults:
    """A stage's results."""
    return DeviceTestResults(
        expected=_NOTHING,
        suites=("smoke",),
        counts={"passed": 20, "failed": failed},
        rounds=(RoundReport(1, 700, 2, makespan_s * 0.9, 0.0), RoundReport(2, 15, 2, makespan_s * 0.1, 0.0)),
        cards=cards,
        makespan_s=makespan_s,
        lower_bound_s=makespan_s * 0.88,
        work_s=makespan_s * 1.8,
    )


def lay_revision(
    home: Path,
    day: int,
    upstream_known: bool = True,
    *,
    trigger: Trigger = "nightly",
    key: str | None = None,
    hours: int = 6,
) -> Revision:
    """Write the manifest of the nightly, or a revision of another trigger, of `day` days and `hours` hours ago."""
    created = NOW - timedelta(days=day, hours=hours, minutes=28)
    revision = Revision(
        key=key or f"{trigger}-{created:%Y%m%d}",
        trigger=trigger,
        created_at=created,
        backend=Source(
            "https://robot:secret-token@git.example/emu/torch_emu.git", "refs/heads/main", f"{day + 1:x}{'c0ffee5' * 6}"[:40]
        ),
        upstream=Source(
            "https://github.com/pytorch/pytorch.git",
            "refs/heads/main",
            f"{day + 9:x}{'badcafe' * 6}"[:40] if upstream_known else None,
            note=None if upstream_known else "git ls-remote timed out after 30 s",
        ),
    )
    manifests = ManifestStore(home)
    manifests.write(manifests.path("revision", revision.key), revision)
    return revision


def lay_build(home: Path, build: Build, counts: dict[Verdict, int], *, until: str = "ledger", shift: int = 0) -> None:
    """Write the manifests of a build, up to and with the stage `until`."""
    manifests = ManifestStore(home)
    fault = "checksum of 4 MiB copy differs" if "infra" in counts else None
    cards = (
        CardReport("emu0", True, None, 372, 318.2, 9.4),
        CardReport("emu1", fault is None, fault, 343, 301.0, 9.1),
    )
    selections = (
        SuiteSelection("integration", 78, 78, {}),
        SuiteSelection(
            "pytorch", 31_204, 622, {"placeholder": 412, "dtype not supported": 28_880, "needs two cards": 1_290}
        ),
    )
    values: dict[str, Any] = {
        "wheel": Wheel(
            "torch_emu", "0.3.0+gc0ffee5c0ff",
            replace(_NOTHING, name="torch_emu-0.3.0-cp311-abi3-linux_x86_64.whl", size_bytes=1_482_113),
            replace(_NOTHING, name="torch_emu-0.3.0.tar.gz", size_bytes=204_000),
            (
                CheckResult("contents", True, "41 files, none stray"),
                CheckResult("abi3", "failed" not in counts, "1 symbol outside the stable ABI", ("_Py_IsFinalizing (3.13)",)),
            ),
            False, 74.3,
        ),
        "runtime_image": RuntimeImage(
            "venv", "/venvs/1/bin/python", "sha256:" + "4be1" * 16, "3.11.9", "2.13.0", "f00dbabe" * 5,
            tuple(f"package-{n}==1.{n}" for n in range(63)), True, 0.4,
        ),
        "smoke_results": results(cards[:1], 8.4),
        "test_selection": TestSelection(_NOTHING, selections, 41.0),
        "test_plan": TestPlan(_NOTHING, 38, 700, 12, 2, 601.0, 300.5),
        "device_test_results": results(cards, 342.0),
        "source_build": SourceBuild(
            "/sources/g1", "g1", "g1", "badcafe5" * 5, ("0001-<b>rename</b>.patch", "0002.patch"), (), True, 0.2
        ),
        "bazel_test_results": BazelTestResults(
            _NOTHING, replace(_NOTHING, name="bep.ndjson"), replace(_NOTHING, name="bazel.log"),
            9, {"passed": 9}, 4, {"PASSED": 5}, BazelActions(95, 12, 6, 4), HOSTILE_MESSAGE if "infra" in counts else None,
            44.0, 45.0,
        ),
    }  # fmt: skip
    if until == "ledger":
        attempts = [attempt for verdict in verdicts(counts, shift) for attempt in attempts_of(verdict)]
        store, day = ResultsStore(home / "results"), NOW.date()
        write_attempts(store, build, day, attempts)
        suites = {attempt.suite: dict.fromkeys(VERDICTS, 0) for attempt in attempts}
        for verdict in verdicts(counts, shift):
            suites[verdict.suite][verdict.verdict] += 1
        values["ledger"] = ledger(counts, build=build, suites=suites)
    for stage, value in values.items():
        manifests.write(manifests.path(stage, build.revision, build.variant), value)
        if stage == until:
            break


def lay_history(home: Path) -> None:
    """Eight nightlies of two variants: failures, flakes, a bad card, a stop, a broken manifest, a build that never began."""
    plain: dict[Verdict, int] = {"passed": 671, "skipped": 21, "xfailed": 8}
    shapes: list[tuple[dict[Verdict, int], dict[Verdict, int] | None]] = [
        ({"passed": 662, "failed": 12, "flaky": 3, "skipped": 15, "xfailed": 8}, plain),
        ({"passed": 668, "failed": 6, "flaky": 3, "skipped": 15, "xfailed": 8}, {"passed": 668, "flaky": 3, "skipped": 29}),
        ({"passed": 700}, {"passed": 640, "infra": 41, "not_run": 19}),
        ({}, plain),
        (plain, plain),
        ({"passed": 697, "flaky": 3}, None),
        (plain, {"passed": 699, "failed": 1}),
        (plain, plain),
    ]
    for day, (first, second) in enumerate(shapes):
        revision = lay_revision(home, day, upstream_known=day > 0)
        lay_build(home, Build(revision.key, VARIANTS[0]), first)
        if second is not None:
            until = "smoke_results" if day == 0 else "ledger"
            lay_build(home, Build(revision.key, VARIANTS[1]), second, until=until)
    lay_quality(home)
    manifests = ManifestStore(home)
    manifests.path("ledger", "nightly-20261123", VARIANTS[0]).write_text("{ broken")
    for path in home.glob("builds/*/*/*.json"):
        os.utime(path, times=(NOW.timestamp() - 5400,) * 2)


def lay_quality(home: Path) -> None:
    """Incidents of each cause, entries of the quarantine, and trends; all with hostile texts."""
    manifests = ManifestStore(home)
    newest, before = "nightly-20261127", "nightly-20261126"
    causes: tuple[Cause, ...] = ("backend", "upstream", "infra", "flaky", "unknown")
    tests = [(VARIANTS[0], "integration", HOSTILE), *((VARIANTS[1], "pytorch", f"tests/a.py::test_{n}") for n in range(70))]
    found = [
        Incident(
            f"{number:012x}", cause, HOSTILE_MESSAGE, f"{HOSTILE_MESSAGE} since {before}", 0.97, before, newest,
            ("open", "returned", "open", "fixed", "open")[number], frozenset(tests), frozenset(tests[: 70 // (number + 1)]),
            frozenset({HOSTILE_MESSAGE}), "card <b>host0</b>:3" if cause == "infra" else None, 2, "team <i>kernels</i>",
        )
        for number, cause in enumerate(causes)
    ]  # fmt: skip
    nights = tuple(
        JudgedRevision(key, NOW - timedelta(days=age), {cause: 3 * place for place, cause in enumerate(causes)})
        for age, key in ((1, before), (0, newest))
    )
    manifests.write(manifests.path(INCIDENTS), Incidents(tuple(found), nights))
    day, kept = NOW.date(), []
    for suite, test, state, issue in (
        ("integration", HOSTILE, "muted", "javascript:alert(1)"), ("pytorch", LONG, "disabled", "https://example.test/1"),
    ):  # fmt: skip
        entry = Entry(suite, test, VARIANTS[0], state, HOSTILE_MESSAGE, "person", day, day, "<u>me</u>", issue)  # type: ignore[arg-type]
        kept.append(entry)
    debt = (Debt("pytorch", HOSTILE, (newest,)),)
    manifests.write(manifests.path(QUARANTINE), QuarantineState(day, tuple(kept), (HOSTILE_MESSAGE,), debt))
    slower = SlowerTest(VARIANTS[0], "pytorch", HOSTILE, 1.0, 2.5, 2.5)
    worse = WorseTest(VARIANTS[0], "pytorch", HOSTILE, 0.01, 0.2, f"{before}<b>", newest)
    manifests.write(manifests.path(TRENDS), Trends((slower,), (worse,), day))
    counts = {HOSTILE: Counts(9, 8, 4, 3), "plain": Counts(5, 4, 4, 4)}
    covered = Coverage(Build(newest, VARIANTS[0]), counts, {HOSTILE: 3}, counts, counts, counts)
    trend = (TrendPoint(covered.build, NOW, covered.total),)
    manifests.write(manifests.path(COVERAGE), CoverageReport(("pytorch",), (covered,), trend))
    place = Place("card", f"{HOSTILE}:0")
    bad = BadPlace(place, 9.0, 4.0, 12.0, 8, 100, 1.0)
    evidence = (Evidence(f"{HOSTILE} passes at the commit before", "backend"),)
    blames = (
        Blame("integration", HOSTILE, covered.build, "backend", 0.97, 0.9, 1.0, HOSTILE_MESSAGE, evidence, HOSTILE_MESSAGE),
        Blame("pytorch", LONG, covered.build, "unknown", 0.4, 0.1, 0.6, "Nothing decides.", (), "timed out"),
    )
    judged = Causes(covered.build, {}, ("pytorch",), blames, (PlaceCount(place, 100, 8, 8, 1.0),), (), (bad,))
    path = manifests.path(f"causes/{newest}~{VARIANTS[0]}")
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(judged))
    jobs = [Job(Build(newest, VARIANTS[0]).name, "nightly", NOW, "passed", 600.0)]
    manifests.write(manifests.path(REPORT), judge_levels(jobs, day, (1, 100), "L2", day - timedelta(days=40)))


def flakiness() -> Flakiness:
    """Flaky tests, the worst of them with a hostile name."""
    names = (HOSTILE, *(f"tests/pytorch/test_ops.py::TestCommonEMU::test_{op}_emu_float16" for op in _OPS[:5]))
    rates = [(24 >> n) / 240 for n in range(5)]
    tests = (
        FlakyTest(VARIANTS[n % 2], "pytorch", names[n], 240, 24 >> n, rate, rate * 0.6, rate * 1.7, HOSTILE_MESSAGE)
        for n, rate in enumerate(rates)
    )
    return Flakiness(30, 1_412, tuple(tests))
