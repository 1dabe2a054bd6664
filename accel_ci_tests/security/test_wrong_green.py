"""Ways to a green build that did not pass. None is green under `accel-ci run nightly --strict`, and each says why.

Each way is a suite of one project, and a night has many of them. For each, the build would not be green if it had that suite
alone. There is no reason against an honest suite, and a night of honest suites is green.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_ci.ledger.status import shortcomings
from accel_ci.model import Ledger
from accel_ci.pipelines import LEDGER
from accel_ci.storage.manifests import ManifestStore
from accel_ci_tests.fixtures.checkout import commit
from accel_ci_tests.fixtures.toy_night import ToyNight, make_toy_night

pytestmark = pytest.mark.timeout(3600)

PASSES = "import toy_backend\ndef test_one(): pass\n"
MANY = "import pytest\n@pytest.mark.parametrize('n', range({count}))\ndef test_n(n): pass\n"
MIXED = "def test_good(): pass\ndef test_bad(): assert False\n"
SKIPS = """
import pytest
@pytest.mark.parametrize('n', range({count}))
def test_n(n):
    if n < {skipped}: pytest.skip('no device')
"""

XFAILS = """
import pytest
pytestmark = pytest.mark.xfail
def test_a(): assert False
def test_b(): assert False
"""
IGNORES = """
def pytest_ignore_collect(collection_path):
    return collection_path.name == "test_b.py" or None
"""
REMOVES = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "bad" not in item.name]
"""
BREAKS = """
def pytest_sessionfinish(session):
    if not session.config.option.collectonly: raise OSError("device did not close")
"""
CHANGES = """
import os, pytest
@pytest.mark.parametrize("n", [os.getpid()])
def test_n(n): pass
def test_a(): pass
"""


@dataclass(frozen=True)
class Way:
    """A suite that must not be green: its files on the first night, and what changes on the second (None: removed)."""

    words: str
    first: Mapping[str, str]
    second: Mapping[str, str | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()


WAYS = {
    "all_xfailed": Way(
        r"0 of 2 tests passed.*2 of 2 tests failed as expected \(100%\)",
        {"test_a.py": XFAILS},
    ),
    "no_device": Way(r"49 of 50 tests were skipped \(98%\)", {"test_a.py": SKIPS.format(count=50, skipped=49)}),
    "all_skipped": Way(r"0 of 5 tests passed", {"test_a.py": SKIPS.format(count=5, skipped=5)}),
    "a_skip_at_import": Way(
        r"0 of 1 tests passed",
        {"test_a.py": "import pytest\npytest.skip('no device', allow_module_level=True)\ndef test_a(): pass\n"},
    ),
    "importorskip": Way(r"0 of 1 tests passed", {"test_a.py": "import pytest\npytest.importorskip('no_such_module')\n"}),
    "by_a_mark": Way(
        r"left out 1, 0 may be: 1 deselected by -m 'not slow'",
        {"test_a.py": "import pytest\ndef test_good(): pass\n@pytest.mark.slow\ndef test_bad(): assert False\n"},
        options=("-m", "not slow"),
    ),
    "by_a_word": Way(r"1 deselected by -k 'not bad'", {"test_a.py": MIXED}, options=("-k", "not bad")),
    "by_deselect": Way(
        r"1 deselected by --deselect", {"test_a.py": MIXED}, options=("--deselect", "tests/by_deselect/test_a.py::test_bad")
    ),
    "by_ignore": Way(
        r"1 files ignored by --ignore",
        {"test_a.py": PASSES, "test_b.py": MIXED},
        options=("--ignore", "tests/by_ignore/test_b.py"),
    ),
    "by_ignore_glob": Way(
        r"1 files ignored by --ignore-glob",
        {"test_a.py": PASSES, "test_b.py": MIXED},
        options=("--ignore-glob", "*/test_b.py"),
    ),
    "collect_ignore": Way(
        r"1 files ignored by collect_ignore in tests/collect_ignore/conftest.py",
        {"conftest.py": "collect_ignore = ['test_b.py']\n", "test_a.py": PASSES, "test_b.py": MIXED},
    ),
    "ignoring_hook": Way(
        r"1 files ignored by pytest_ignore_collect in tests/ignoring_hook/conftest.py",
        {
            "conftest.py": IGNORES,
            "test_a.py": PASSES,
            "test_b.py": MIXED,
        },
    ),
    "removing_hook": Way(
        r"1 removed without a word by .*pytest_collection_modifyitems in tests/removing_hook/conftest.py",
        {
            "conftest.py": REMOVES,
            "test_a.py": MIXED,
        },
    ),
    "deselecting_hook": Way(
        r"1 deselected by pytest_collection_modifyitems in tests/deselecting_hook/conftest.py",
        {
            "conftest.py": """
def pytest_collection_modifyitems(items, config):
    config.hook.pytest_deselected(items=[item for item in items if 'bad' in item.name])
    items[:] = [item for item in items if 'bad' not in item.name]
""",
            "test_a.py": MIXED,
        },
    ),
    "a_regression_that_passes_once": Way(
        r"\d+ failed",
        {
            "test_a.py": """
import pathlib, tempfile
def test_good(): pass
def test_shaky():
    tries = pathlib.Path({scratch!r}, "tries")
    with tries.open("a") as file: file.write("x")
    assert len(tries.read_text()) == 2
"""
        },
    ),
    "a_broken_session": Way(
        r"a_broken_session: \(session\)",
        {"conftest.py": BREAKS, "test_a.py": PASSES},
    ),
    "a_module_of_the_sources": Way(
        r"a_module_of_the_sources: \(session\)",
        {
            "conftest.py": "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent / 'other'))\n",
            "other/toy_backend/__init__.py": "",
            "test_a.py": PASSES,
        },
    ),
    "a_changed_wheel": Way(
        r"a_changed_wheel: \(session\)",
        {
            "test_a.py": """
import pathlib, sys, types
def test_change():
    import toy_backend
    fake = types.ModuleType("toy_backend.extra")
    fake.__file__ = str(pathlib.Path(__file__))
    sys.modules["toy_backend.extra"] = fake
"""
        },
    ),
    "ids_that_change": Way(
        r"1 not run",
        {"test_a.py": CHANGES},
    ),
    "an_exit": Way(r"\d+ failed", {"test_a.py": "import os\ndef test_good(): pass\ndef test_exit(): os._exit(0)\n"}),
    "a_broken_file": Way(r"\d+ failed", {"test_a.py": PASSES, "test_b.py": "import no_such_module\n"}),
    "half_of_the_tests": Way(
        r"20 of the 40 tests that were expected before vanished without a reason \(50%",
        {"test_a.py": MANY.format(count=40)},
        {"test_a.py": MANY.format(count=20)},
    ),
    "a_skip_at_import_later": Way(
        r"5 of the 6 tests that were expected before vanished",
        {"test_a.py": PASSES, "test_b.py": MANY.format(count=5)},
        {"test_b.py": "import pytest\npytest.skip('no device', allow_module_level=True)\n"},
    ),
    "more_skips": Way(
        r"16 of 40 tests were skipped, 2 of 40 in nightly-\d+; a rise of 20% is allowed",
        {"test_a.py": SKIPS.format(count=40, skipped=2)},
        {"test_a.py": SKIPS.format(count=40, skipped=16)},
    ),
    "a_class_that_is_no_test": Way(
        r"1 of the 2 tests that were expected before vanished",
        {"test_a.py": "def test_a(): pass\nclass TestB:\n    def test_b(self): pass\n"},
        {"test_a.py": "def test_a(): pass\nclass TestB:\n    __test__ = False\n    def test_b(self): pass\n"},
    ),
    "ignored_later": Way(
        r"5 of the 6 tests that were expected before vanished",
        {"test_a.py": PASSES, "test_b.py": MANY.format(count=5)},
        {"conftest.py": "collect_ignore = ['test_b.py']\n"},
    ),
}
SECOND = [name for name, way in WAYS.items() if way.second]
HONEST: dict[str, Way] = {
    "honest": Way("", {"test_a.py": PASSES, "test_b.py": MANY.format(count=5)}, {"test_b.py": None}),
    "flat": Way("", {
        "__init__.py": "",
        "test_a.py": "import toy_backend\ndef test_it_is_the_wheel(): assert 'site-packages' in toy_backend.__file__\n",
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Night:
    """A night that has ended: what its command printed, and its ledger."""

    output: str
    ledger: Ledger

    @property
    def state(self) -> str:
        """The reasons against the build."""
        return ", ".join(shortcomings(self.ledger))

    def against(self, suite: str) -> str:
        """The reasons against the build if it had this suite alone."""

        def own(lines: Iterable[str]) -> tuple[str, ...]:
            return tuple(line for line in lines if line.startswith(f"{suite}: "))

        counts, whole = self.ledger.suites[suite], self.ledger
        alone = replace(
            whole, suites={suite: counts}, counts=counts, expected=sum(counts.values()), incomplete=own(whole.incomplete),
            vanished_reasons=own(whole.vanished_reasons), unexpected_failures=own(whole.unexpected_failures),
        )  # fmt: skip
        return ", ".join(shortcomings(alone))


def suites_of(ways: Mapping[str, Way]) -> dict[str, Any]:
    own = {name: {"paths": [f"tests/{name}"], "pytest_args": list(way.options)} for name, way in ways.items()}
    return {"smoke": {"stage": "smoke", "paths": ["tests/smoke"]}, **own}


def files_of(ways: Mapping[str, Way], scratch: Path) -> dict[str, str]:
    return {
        f"backend/tests/{name}/{file}": text.replace("{scratch!r}", repr(str(scratch)))
        for name, way in ways.items()
        for file, text in way.first.items()
    }


def configure(night: ToyNight, ways: Mapping[str, Way], **sections: object) -> None:
    """Give the project these suites, and change sections of its configuration."""
    suites = suites_of(ways)
    job = {"cron": "0 2 * * *", "suites": list(suites)}
    quick = {"suites": list(suites)}
    jobs = {"nightly": job, "intraday": job, "main": quick, "pr": quick}
    found = yaml.safe_load(night.project.config_path.read_text())
    night.project.config_path.write_text(
        yaml.safe_dump({**found, "suites": suites, "jobs": jobs, **sections}, sort_keys=False)
    )


def run(night: ToyNight, status: int) -> Night:
    output = night.accel_ci("run", "nightly", "--strict", status=status)
    return Night(output, newest_ledger(night))


def newest_ledger(night: ToyNight) -> Ledger:
    manifests = ManifestStore(night.project.home)
    [build, *_] = manifests.list_builds()
    return manifests.read(manifests.path(LEDGER, build.revision, build.variant), Ledger)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToyNight, list[Night]]:
    """A green night, then one with all ways, of which some are changes, and one with two suites as they are by then."""
    folder = tmp_path_factory.mktemp("wrong-green")
    scratch = folder / "scratch"
    scratch.mkdir()
    begin = {**HONEST, **{name: WAYS[name] for name in SECOND}}
    smoke = {"backend/tests/smoke/test_smoke.py": "def test_smoke(): pass\n", "backend/tests/__init__.py": ""}
    night = make_toy_night(folder / "project", {**smoke, **files_of(begin, scratch)})
    repository = folder / "project" / "repository"
    configure(night, begin)
    ended = [run(night, 0)]
    for name, way in begin.items():
        for file, text in way.second.items():
            place = repository / "backend" / "tests" / name / file
            place.unlink() if text is None else place.write_text(text)
    configure(night, {**HONEST, **WAYS})
    commit(repository, files_of({name: way for name, way in WAYS.items() if name not in SECOND}, scratch))
    ended.append(run(night, 1))
    configure(night, {name: begin[name] for name in ("honest", "half_of_the_tests")})
    commit(repository, {"README.md": "changed"})
    ended.append(run(night, 1))
    return night, ended


@pytest.mark.parametrize("name", WAYS)
def test_a_wrong_green_is_not_green_and_says_why(nights: tuple[ToyNight, list[Night]], name: str) -> None:
    night = nights[1][1]
    assert re.search(WAYS[name].words, night.against(name)), night.against(name)
    assert night.state in night.output, "the command says it, too"


def test_honest_suites_are_green_and_nothing_is_said_of_them(nights: tuple[ToyNight, list[Night]]) -> None:
    _, ended = nights
    assert f"{ended[0].ledger.build.name}: passed" in ended[0].output
    assert {night.against(name) for night in ended for name in HONEST if name in night.ledger.suites} == {""}


def test_what_vanished_is_missed_until_a_person_accepts_it(nights: tuple[ToyNight, list[Night]]) -> None:
    night, ended = nights
    assert "20 of the 40 tests that were expected before vanished" in ended[2].state
    night.accel_ci("accept", "--reason", " ", status=2)
    said = night.accel_ci("accept", "--reason", "the suite was halved on purpose")
    assert "20 tests are not expected any more: the suite was halved on purpose" in said
    assert f"{ended[2].ledger.build.name}: passed" in night.accel_ci("status")
    assert "nothing to accept" in night.accel_ci("accept", "--reason", "again", status=2)
    commit(night.folder / "repository", {"README.md": "changed once more"})
    assert run(night, 0).state == ""


def test_a_smoke_gate_stays_shut_while_expected_tests_did_not_run(nights: tuple[ToyNight, list[Night]]) -> None:
    night, _ = nights
    text = (
        "import os, pytest\n@pytest.mark.parametrize('n', [f'{os.getpid()}-{n}' for n in range(9)])\ndef test_n(n): pass\n"
    )
    commit(night.folder / "repository", {"backend/tests/smoke/test_smoke.py": f"{text}def test_smoke(): pass\n"})
    configure(night, HONEST)
    output = night.accel_ci("run", "nightly", "--strict", status=1)
    assert "the check smoke_passed failed" in output
    assert "10 tests were expected, and 1 passed and 0 were excused" in output


def test_a_package_that_replaces_a_module_of_the_wheel_stops_the_build(nights: tuple[ToyNight, list[Night]]) -> None:
    night, _ = nights
    with zipfile.ZipFile(night.folder / "links" / "clobber-1.0-py3-none-any.whl", "w") as wheel:
        info = "clobber-1.0.dist-info"
        files = {
            "toy_backend/__init__.py": "def autoload(): 'not what was built'\n",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: clobber\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    [variant] = yaml.safe_load(night.project.config_path.read_text())["variants"]
    configure(night, HONEST, variants=[{**variant, "requirements": ["pytest", "clobber"]}])
    commit(night.folder / "repository", {"README.md": "with another package"})
    output = night.accel_ci("run", "nightly", "--strict", status=1)
    assert "the wheel is not what is installed in the runtime image" in output
    assert "clobber-1.0" in output
