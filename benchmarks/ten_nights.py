"""Ten nights of the example backend with five kinds of faults: `python -m benchmarks.ten_nights [--pictures FOLDER]`.

Everything is run for real, by the command line: wheels, runtime images and tests of the example backend on two emulated
cards, on a pinned PyTorch and on PyTorch main, and at the end a pull request. Faults are put in on certain nights, and some
are taken away again, so that each page of the HUD has something to tell:

- a commit of the backend makes operators wrong, one makes an operator crash, and one makes a function slower;
- a commit of upstream refuses devices that it does not know;
- an operator is flaky;
- a card goes bad;
- a commit loses a part of a suite, without a word.

At the end, each fault is looked for in the data of the HUD's pages, and each night's causes are compared with what was put
in. The exit status is 1 if a fault is not told.

The nights are those of the last ten days: the revision of each is resolved as of two o'clock of that day, and all that
counts by days goes by that time. What is not of another day is the time of the runs themselves: when an attempt began, when
a run ended, since when a test is in quarantine. PyTorch main is a stand-in: its wheels have the code of the pinned PyTorch,
by links, with versions and commits of their own, and some with another `functional.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from accel_ci.config.loading import load_project
from accel_ci.defs.instance import open_instance
from accel_ci.defs.triggers import start_revision
from accel_ci.model import Build, Ledger
from accel_ci.pipelines import LEDGER
from accel_ci.quality.judgement import read_causes
from accel_ci.wheels.uv_environment import PackageSource, create, resolve
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.bench import Bench, make_bench
from accel_ci_tests.fixtures.checkout import ROOT, commit, git
from accel_ci_tests.fixtures.stand_in_torch import write_other_torch

INSTALLATION_S = 1800.0
PINNED, MAIN = "py311-torch2.13-emu", "py311-torchmain-emu"
OPS = ("add*", "atan2", "b*", "c*", "div*", "erf*", "exp*", "f*", "l*", "round*", "s?n", "sqrt", "tan*")
"""Patterns of the operators whose tests run: some two hundred."""

DISPATCH, DEVICE = "src/torch_emu/dispatch.py", "src/torch_emu/device_module.py"
OP_TESTS, FUNCTIONAL = "tests/pytorch/test_op_db.py", "torch/functional.py"
BEFORE, AFTER = "    if FAULTY:\n", "    if func._schema.is_mutable:\n"
"""Lines of the path of an operator: those before and after which its kernel runs."""

REFUSAL = """

def _of_known_devices(function):
    def checked(*args, **kwargs):
        if any(isinstance(one, torch.Tensor) and one.device.type not in ("cpu", "cuda") for one in args):
            raise NotImplementedError("this function needs tensors of the devices that it knows: cpu, cuda")
        return function(*args, **kwargs)

    return checked


block_diag, broadcast_tensors, cartesian_prod, cdist = map(
    _of_known_devices, (block_diag, broadcast_tensors, cartesian_prod, cdist)
)
"""


@dataclass(frozen=True)
class Change:
    """A commit of the backend: its message, its file, and the text that takes the place of another there."""

    message: str
    file: str
    old: str
    new: str

    def undone(self, message: str) -> Change:
        """Return the commit that undoes this one."""
        return Change(message, self.file, self.new, self.old)


WRONG = Change(
    "Approximate the error functions by a shorter polynomial",
    DISPATCH,
    AFTER,
    f'    if op.name in ("erf", "erfc", "erfinv"):\n        result = result * 1.01\n{AFTER}',
)
CRASH = Change(
    "Call the vendor's library for tan",
    DISPATCH,
    BEFORE,
    f'    if op.name == "tan":\n        import os\n\n        os.abort()\n{BEFORE}',
)
SLOW = Change(
    "Ask the card whether it is done only every 1.5 s",
    DEVICE,
    '    """Return immediately: every kernel has ended when its call returns."""\n',
    '    """Wait until the card says that it is done."""\n    import time\n\n    time.sleep(1.5)\n',
)
LOSS = Change(
    "Leave the operators of linear algebra for later",
    OP_TESTS,
    '@pytest.mark.parametrize("op", op_db, ids=IDS)',
    '@pytest.mark.parametrize("op", [op for op in op_db if not op.name.startswith("linalg")], ids=id_of)',
)
PULL_REQUEST = Change(
    "Compute fmod by the rounded quotient",
    DISPATCH,
    AFTER,
    f'    if op.name == "fmod":\n        result = result + 1\n{AFTER}',
)


@dataclass(frozen=True)
class Night:
    """A night: the commits of the backend before it, the faults of its device, and whether upstream moves on.

    The backend `goes_back` to its commit before the last one. `refuses` says that upstream's new commit refuses unknown
    devices. `causes` are the failures that are to be told: the causes that are right for the tests of each operator.
    """

    changes: tuple[Change, ...] = ()
    faults: str = "flaky:atan2"
    moves: bool = False
    goes_back: bool = False
    refuses: bool = False
    causes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


FLAKY = {"atan2": ("flaky",)}
BACKEND = dict.fromkeys(("erf", "erfc", "erfinv"), ("backend",))
UPSTREAM = dict.fromkeys(("block_diag", "broadcast_tensors", "cartesian_prod", "cdist"), ("upstream",))
CRASHES = {"tan": ("backend",)}
AT_FIRST = {"tan": ("backend", "unknown")}
"""One night of one test proves little."""

NIGHTS = (
    Night(faults="", moves=True),
    Night(causes=FLAKY),
    Night((WRONG,), causes=FLAKY | BACKEND),
    Night(moves=True, refuses=True, causes=FLAKY | BACKEND | UPSTREAM),
    Night(causes=FLAKY | BACKEND | UPSTREAM),
    Night((WRONG.undone("Use the long polynomial again"), SLOW), causes=FLAKY | UPSTREAM),
    Night(faults="bad_card:1@40", causes=UPSTREAM),
    Night((CRASH,), moves=True, causes=FLAKY | AT_FIRST),
    Night((LOSS,), causes=FLAKY | CRASHES),
    Night(goes_back=True, causes=FLAKY | CRASHES),
)
BROKEN, BROKEN_UPSTREAM, SLOWER, BAD_CARD, CRASHING, LOST = 2, 3, 5, 6, 7, 8
"""Places of the nights in which faults begin."""


def op_of(test: str) -> str:
    """The operator of a test, or the last part of its name where it has none."""
    last = test.rpartition("::")[2]
    return last.partition("[")[2].rstrip("]") or last


class Stage:
    """The folder of the nights: the backend's and upstream's repositories, PyTorch main's wheels, and the project."""

    def __init__(self, folder: Path) -> None:
        self.bench: Bench = make_bench(folder)
        self.folder, self.backend, self.upstream = folder, folder / "backend", folder / "upstream"
        self.configure("")
        self.installed = self.install()
        release = commit(self.upstream, {"version.txt": "2.13.0\n"}, "Release 2.13")
        self.publish("pinned", "2.13.0", release)

    @property
    def workspace(self) -> Workspace:
        """The workspace of the project."""
        return Workspace(load_project(self.folder / "accel_ci.yaml"))

    def configure(self, faults: str) -> None:
        """Write the configuration, with the faults of the emulated device."""
        example = yaml.safe_load((ROOT / "accel_ci.yaml").read_text())
        pinned, suites = example["variants"][0], ["integration", "pytorch"]
        del pinned["torch_backend"]
        pinned |= {"name": PINNED, "torch_index": "wheels/pinned"}
        main = {**pinned, "name": MAIN, "torch": "torch", "torch_source": "main", "torch_index": "wheels/{sha}"}
        scope = {**example["suites"]["pytorch"]["scope"], "include": [f"*::test_op[{op}]" for op in OPS]}
        environment = {**example["pool"]["environment"], "EMU_STATE_DIR": str(self.folder / "state")}
        quarantine = {"automatic": True, "budget": 0.05, "mute_above": 0.2, "disable_above": 1.0}
        self.bench.configure(
            variants=[pinned, main],
            jobs__nightly__suites=suites,
            jobs__pr__suites=["integration"],
            suites__pytorch__scope=scope,
            pool__environment=environment | ({"EMU_FAULTS": faults} if faults else {}),
            quality={
                "quarantine": quarantine,
                "owners": [
                    {"tests": ["*"], "causes": ["infra"], "owner": "the laboratory"},
                    {"files": ["tests/pytorch/*"], "owner": "operators"},
                ],
            },
        )

    def change(self, change: Change) -> None:
        """Commit a change of the backend."""
        text = (self.backend / change.file).read_text()
        if change.old not in text:
            raise SystemExit(f"{change.message}: {change.file} of the example has changed, and this script has not")
        commit(self.backend, {change.file: text.replace(change.old, change.new, 1)}, change.message)

    def install(self) -> Path:
        """Install the pinned PyTorch once, and return the folder of its packages."""
        variant = load_project(self.folder / "accel_ci.yaml").settings.variants[0]
        source = PackageSource.from_settings("cpu")
        pins = resolve([variant.torch], variant.python, source, timeout_s=INSTALLATION_S)
        python = create(self.folder / "pytorch", variant.python, pins, source, timeout_s=INSTALLATION_S, compiled=True)
        [packages] = python.parent.parent.glob("lib/python*/site-packages")
        return packages

    def publish(self, name: str, version: str, sha: str, refuses: bool = False) -> None:
        """Put a wheel of PyTorch with a version and commit where a variant looks for it."""
        code, wheels = self.folder / "code" / name, self.folder / "wheels" / name
        wheels.mkdir(parents=True)
        write_other_torch(wheels, version, sha, self.installed, code)
        if refuses:
            text = (code / FUNCTIONAL).read_text()
            (code / FUNCTIONAL).unlink()
            (code / FUNCTIONAL).write_text(text + REFUSAL)

    def run(self, night: Night, number: int, at: datetime, say: Callable[[str], None]) -> str:
        """Run a night as of a time, in both variants, and return its revision."""
        began = time.monotonic()
        if night.moves:
            message = "Name the devices that functions know" if night.refuses else f"Change {number}"
            sha = commit(self.upstream, {"version.txt": f"2.14.{number}\n"}, message)
            self.publish(sha, f"2.14.0.dev{at:%Y%m%d}", sha, night.refuses)
        for change in night.changes:
            self.change(change)
        if night.goes_back:
            git(self.backend, "reset", "--quiet", "--hard", "HEAD~1")
        self.configure(night.faults)
        shutil.rmtree(self.folder / "state", ignore_errors=True)  # of the faults: a flaky operator fails at its first turn
        workspace = self.workspace
        with open_instance(workspace.project) as instance:
            revision = start_revision(instance, workspace, "nightly", now=at)
        commands = [("run", "nightly", "--revision", revision.key, "--variant", variant) for variant in (PINNED, MAIN)]
        with ThreadPoolExecutor() as both:
            list(both.map(lambda command: self.bench.accel_ci(*command), commands))
        counts = [
            f"{variant}: " + (", ".join(f"{n} {verdict}" for verdict, n in ledger.counts.items() if n) if ledger else "lost")
            for variant in (PINNED, MAIN)
            for ledger in [self.ledger(Build(revision.key, variant))]
        ]
        say(f"night {number} of {len(NIGHTS)}, {revision.key}, {time.monotonic() - began:.0f} s: {'; '.join(counts)}")
        return revision.key

    def ledger(self, build: Build) -> Ledger | None:
        """The ledger of a build."""
        return self.workspace.manifests.find(LEDGER, build, Ledger)

    def run_pull_request(self) -> None:
        """Run a pull request that breaks a test."""
        self.configure("")
        git(self.backend, "checkout", "--quiet", "-b", "fmod")
        self.change(PULL_REQUEST)
        git(self.backend, "update-ref", "refs/pull/7/head", "HEAD")
        git(self.backend, "checkout", "--quiet", "main")
        self.bench.accel_ci("run", "pr", "--number", "7", "--variant", PINNED)

    def causes(self, revision: str) -> dict[str, set[str]]:
        """The causes of a night's failures by operator or test, in all variants."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for variant in (PINNED, MAIN):
            causes = read_causes(self.workspace, Build(revision, variant))
            for blame in causes.blames if causes is not None else ():
                found[op_of(blame.test)].add(blame.cause)
        return dict(found)


def judge_night(night: Night, found: Mapping[str, set[str]], bad_card: bool) -> list[str]:
    """Return what is wrong with the causes of a night."""
    wrong = []
    for op, right in night.causes.items():
        told = found.get(op, set()) - ({"infra"} if bad_card else set())
        if not told or not told <= set(right):
            wrong.append(f"{op}: {', '.join(sorted(told)) or 'not told'}, not {' or '.join(right)}")
    for op in found.keys() - night.causes.keys():
        if not (bad_card and found[op] <= {"infra"}):
            wrong.append(f"{op}: {', '.join(sorted(found[op]))}, but nothing was put in")
    return wrong


@dataclass(frozen=True)
class Told:
    """A fault, the page that is to tell it, and whether it does."""

    fault: str
    page: str
    is_told: bool


def read_hud(hud: Path, revisions: Sequence[str], days: Sequence[datetime]) -> list[Told]:
    """Look for each fault in the data of the HUD's pages."""
    data = {name: json.loads((hud / f"{name}.json").read_text()) for name in ("incidents", "flaky", "cards", "quality")}

    def has_incident(cause: str, ops: set[str], first: int, last: int, state: str, variants: set[str]) -> bool:
        return any(
            (one["cause"], one["state"]) == (cause, state)
            and ops <= {op_of(test) for _, _, test in one["tests"]}
            and {variant for variant, _, _ in one["tests"]} == variants
            and (one["first"], one["last"]) == (revisions[first], revisions[last])
            for one in data["incidents"]["incidents"]
        )

    both, column = {PINNED, MAIN}, [day.date().isoformat() for day in days].index(days[BAD_CARD].date().isoformat())
    cards, slower = data["cards"], data["quality"]["trends"]["slower"]
    ill = [row for row in cards["cards"] if (day := row["days"][column]) is not None and day["healthy"] is False]
    pages = "".join(path.read_text() for path in hud.rglob("*.html"))
    return [
        Told(
            "the backend broke 3 operators in night 3, and mended them in night 6",
            "incidents.html",
            has_incident("backend", set(BACKEND), BROKEN, SLOWER - 1, "fixed", both),
        ),
        Told(
            "upstream broke 4 functions in night 4, until night 8",
            "incidents.html",
            has_incident("upstream", set(UPSTREAM), BROKEN_UPSTREAM, CRASHING - 1, "fixed", {MAIN}),
        ),
        Told(
            "tan crashes since night 8",
            "incidents.html",
            has_incident("backend", {"tan"}, CRASHING, len(revisions) - 1, "open", both),
        ),
        Told(
            "atan2 is flaky since night 2",
            "flaky.html",
            {one["variant"] for one in data["flaky"]["flakiness"]["flaky"] if op_of(one["test"]) == "atan2"} == both,
        ),
        Told("one card was bad in night 7, and no other", "cards.html", [row["name"][-1] for row in ill] == ["1"]),
        Told(
            "synchronize is slower since night 6",
            "quality.html",
            {one["variant"] for one in slower if one["test"].endswith("after_synchronize")} == both,
        ),
        Told("the tests of linear algebra vanished in night 9", "index.html", "vanished without a reason" in pages),
        Told("the pull request breaks fmod", "index.html", "pr-7-" in pages and "fmod" in pages),
    ]


def show(console: Console, stage: Stage, revisions: Sequence[str], told: Sequence[Told]) -> bool:
    """Print what was put in and what was told, and return whether everything was."""
    right = True
    table = Table("night", "put in", "told", "", title="Causes by night")
    for number, (night, revision) in enumerate(zip(NIGHTS, revisions, strict=True)):
        found, bad_card = stage.causes(revision), number == BAD_CARD
        wrong = judge_night(night, found, bad_card)
        right = right and not wrong
        put_in = in_words({op: set(causes) for op, causes in night.causes.items()})
        extra = [*(["a bad card"] if bad_card else []), *(["lost tests"] if number == LOST else [])]
        table.add_row(
            revision, "; ".join([*put_in, *extra]) or "nothing", "; ".join(in_words(found)) or "nothing",
            "; ".join(wrong) or "right",
        )  # fmt: skip
    console.print(table)
    table = Table("fault", "page", "", title="Faults on the pages")
    for one in told:
        table.add_row(one.fault, one.page, "told" if one.is_told else "NOT TOLD")
    console.print(table)
    return right and all(one.is_told for one in told)


def in_words(causes: Mapping[str, set[str]]) -> list[str]:
    """Say the causes of operators, the operators of one cause together; many are counted."""
    by_cause: defaultdict[str, list[str]] = defaultdict(list)
    for op, of_op in sorted(causes.items()):
        by_cause[" or ".join(sorted(of_op))].append(op)
    return [f"{cause}: {', '.join(ops) if len(ops) < 6 else f'{len(ops)} tests'}" for cause, ops in sorted(by_cause.items())]


def last_nights(now: datetime) -> list[datetime]:
    """Two o'clock of the last days, the oldest first."""
    last = now.replace(hour=2, minute=0, second=0, microsecond=0)
    last -= timedelta(days=last > now)
    return [last - timedelta(days=age) for age in reversed(range(len(NIGHTS)))]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the nights, print what was told, and return 1 when a fault was not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ten_nights", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="an empty folder [default: a new one, which stays]")
    parser.add_argument("--pictures", type=Path, help="take pictures of the HUD into this folder (docs/hud_pictures.py)")
    given = parser.parse_args(argv)
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="accel-ci-ten-nights-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    console, began = Console(soft_wrap=True), time.monotonic()
    stage, days = Stage(folder), last_nights(datetime.now(timezone.utc))
    revisions = [
        stage.run(night, number, day, console.print) for number, (night, day) in enumerate(zip(NIGHTS, days, strict=True), 1)
    ]
    stage.bench.accel_ci("quality", "--trends")  # the first build of a day finds them, and all nights are run on one day
    stage.run_pull_request()
    workspace: Any = stage.workspace
    told = read_hud(workspace.hud, revisions, days)
    right = show(console, stage, revisions, told)
    if given.pictures:
        script = [sys.executable, str(ROOT / "docs" / "hud_pictures.py"), str(workspace.hud), str(given.pictures)]
        subprocess.run(script, check=True)
    console.print(f"{time.monotonic() - began:.0f} s; the HUD: {workspace.hud}")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
