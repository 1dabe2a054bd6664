"""Verdicts are those of plain pytest: suites of well-known packages, run by `pytest` and by two workers.

Plain pytest runs twice. Tests whose outcome differs between the two are left out, and messages that differ are not compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from accel_ci.model import Limits
from accel_ci.process.environment import clean_environment
from accel_ci_tests.fixtures.environments import environment_with
from accel_ci_tests.runner import plain_oracle
from accel_ci_tests.runner.verdicts import Verdicts, by_workers, differences, verdicts_of

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ACCEL_CI_LONG"), reason="minutes: ACCEL_CI_LONG not set (make test-nightly)"),
    pytest.mark.timeout(5400),
]

_CPYTHON = (
    "abc argparse base64 binascii bisect bool calendar collections configparser contextlib copy csv dataclasses dict enum "
    "fnmatch fractions fstring functools getopt glob heapq html json linecache list operator ordered_dict pathlib posixpath "
    "pprint range set shelve shlex string struct textwrap tuple types typing unittest userdict warnings weakref"
)
_NUMPY = (
    "abc argparse array_coercion array_interface arraymethod arrayobject arrayprint casting_floatingpoint_errors dlpack "
    "dtype errstate extint128 function_base getlimits half indexing item_selection limited_api longdouble memmap "
    "nep50_promotions overrides print protocols records scalar_ctors scalar_methods scalarbuffer scalarinherit shape_base "
    "strings umath_complex unicode"
)


@dataclass(frozen=True)
class RealSuite:
    """A suite: what is installed for it, its paths, and the number of tests that at least are compared."""

    requirements: tuple[str, ...]
    paths: tuple[str, ...]
    tests: int
    arguments: tuple[str, ...] = ()


SUITES = {
    "attrs": RealSuite(("attrs==25.4.0", "hypothesis==6.140.2", "cloudpickle==3.1.1"), ("tests",), 1000),
    "click": RealSuite(("click==8.1.8",), ("tests",), 500),
    "pluggy": RealSuite(("pluggy==1.6.0",), ("testing",), 100, ("--ignore=testing/benchmark.py",)),
    "numpy": RealSuite(
        ("numpy==2.3.4", "hypothesis==6.140.2"), tuple(f"numpy/_core/tests/test_{name}" for name in _NUMPY.split()), 2_000
    ),
    "cpython": RealSuite((), tuple(f"test/test_{name}" for name in _CPYTHON.split()), 3_000),
}


@pytest.mark.parametrize("name", SUITES)
def test_real_suite(name: str, runner: Path, tmp_path: Path) -> None:
    suite = SUITES[name]
    python = environment_with(tmp_path / "environment", "pytest==8.4.2", *suite.requirements)
    packages = next(tmp_path.glob("environment/lib/python3*/site-packages"))
    shutil.copy(plain_oracle.__file__, packages)
    root = packages if name == "numpy" else sources(name, suite, python, tmp_path / "sources")
    paths = [path for each in suite.paths for path in (each, f"{each}.py") if (root / path).exists()]
    first, second = (plain(python, root, paths, suite.arguments, tmp_path / f"run{n}" / "plain") for n in range(2))
    expected = {
        test: (outcome, message if second[test][1] == message else "")
        for test, (outcome, message) in first.items()
        if second.get(test, ("",))[0] == outcome
    }
    unstable = {*first, *second} - {*expected}
    limits = Limits(test_timeout_s=900, silence_s=900)  # plain pytest has none
    found = by_workers(python, root, runner, {name: (suite.arguments, paths)}, tmp_path, limits)[name]
    compared = {test: verdict for test, verdict in found.items() if test not in unstable}
    different = differences(compared, expected)
    print(f"{name}: {len(expected)} tests, {len(unstable)} unstable in plain pytest, {len(different)} different")
    assert not different, "\n".join(different)
    assert len(expected) >= suite.tests
    assert len(unstable) <= len(expected) / 100


def sources(name: str, suite: RealSuite, python: Path, folder: Path) -> Path:
    """Return the root of a suite's sources, from a source distribution or Python's own library; skip where there is none."""
    folder.mkdir()
    if name == "cpython":
        ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
        library = Path(subprocess.run(ask, capture_output=True, check=True, text=True, timeout=60).stdout.strip())
        if not (library / "test" / "test_dict.py").exists():
            pytest.skip(f"{library} has no tests of Python's: install them, such as libpython3-testsuite")
        shutil.copytree(library / "test", folder / "test", ignore=shutil.ignore_patterns("__pycache__"))
        return folder
    download = ["download", "-q", "--no-deps", "--no-binary", name, "--dest", str(folder), suite.requirements[0]]
    done = subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True, text=True, timeout=600)
    archive = next(folder.glob("*.tar.gz"), None)
    if done.returncode != 0 or archive is None:
        pytest.skip(f"no source distribution of {suite.requirements[0]} is to be had: {done.stderr.strip()[-300:]}")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def plain(python: Path, root: Path, paths: Sequence[str], arguments: Sequence[str], copy: Path) -> Verdicts:
    """Run plain pytest on a copy of the sources, or in place where these are installed packages."""
    copy.parent.mkdir(exist_ok=True)
    if root.name != "site-packages":
        root = shutil.copytree(root, copy)
    output = copy.with_name("oracle.json")
    command = [str(python), "-P", "-m", "pytest", "-p", "plain_oracle", *arguments, *paths]
    environment = {**clean_environment({}), "PLAIN_ORACLE": str(output)}
    subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=1800)
    reports: dict[str, list[tuple[str, str]]] = {}
    for nodeid, category, message, when in json.loads(output.read_bytes()):
        if when != "collect" or category != "skipped":
            reports.setdefault(nodeid, []).append((category, message))
    return verdicts_of(reports)
