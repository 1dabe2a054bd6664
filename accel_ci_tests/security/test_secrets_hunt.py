"""A fake secret of each kind is configured, hostile sources look for them, and then everything that is left is searched."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
import yaml

from accel_ci.config.loading import parse_settings
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.guarded_server import guarded_server
from accel_ci_tests.fixtures.project import minimal_config
from accel_ci_tests.fixtures.stand_in_torch import write_package, write_torch
from accel_ci_tests.fixtures.toy_backend import PYPROJECT

pytestmark = pytest.mark.timeout(1800)
"""Nine commands of the command line, two of them builds, in one fixture."""

_KINDS = (
    "git", "index", "requirement", "docker", "awsid", "awskey", "rbeheader", "sqlpassword", "deploytoken", "hubtoken",
    "home",
)  # fmt: skip
FAKES = {kind: f"fake{number}{kind}Zq8Lm3" for number, kind in enumerate(_KINDS)}
OTHER_USER = "23456:23456"
"""Whom the code of the sources runs as where the tests are root, to whom nothing is hidden."""

PROBE = """
import json, os, pathlib


def look(what):
    print(f"LOOKED {what} as {os.getuid()}", json.dumps(dict(os.environ)))
    pid = os.getpid()
    while pid > 1:
        for name in ("environ", "cmdline"):
            try:
                print("READ", pid, name, repr(pathlib.Path(f"/proc/{pid}/{name}").read_bytes())[:20000])
            except OSError as error:
                print("REFUSED", pid, name, error.strerror)
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for name in PLACES:
        try:
            print("READ", pathlib.Path(name).read_text())
        except OSError as error:
            print("REFUSED", error.strerror)
"""
SETUP = """
from setuptools import setup
look("build")
setup(version="1.0")
"""
FAILING_SETUP = """
look("failing build")
raise SystemExit("the build fails")
"""
TESTS = """
def test_that_looks():
    look("test")
    assert not os.environ, json.dumps(dict(os.environ))
"""


@dataclass(frozen=True)
class Hunt:
    """The traces of the runs: their data folder, their output, and the command lines that held a fake."""

    home: Path
    printed: dict[str, str]
    command_lines: frozenset[str]


@pytest.fixture(scope="module")
def hunt() -> Iterator[Hunt]:
    """Run two builds, a source build and all commands that show something, with all fakes in their environment."""
    folder = Path(tempfile.mkdtemp(prefix="accel-ci-hunt-"))
    folder.chmod(0o755)
    try:
        yield _run_all(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_all(folder: Path) -> Hunt:
    python = _python_for_everybody()
    served, private = folder / "served", folder / "private"
    for place in (served, private / "docker"):
        place.mkdir(parents=True, mode=0o700)
    private.chmod(0o700)
    auth = base64.b64encode(f"ci:{FAKES['docker']}".encode()).decode()
    (private / "docker" / "config.json").write_text(json.dumps({"auths": {"registry.example": {"auth": auth}}}))
    (private / "secret.txt").write_text(FAKES["home"])
    places = (private / "secret.txt", private / "docker" / "config.json", folder / "accel_ci.yaml")
    _make_sources(served, [str(place) for place in places])
    _make_wheels(served)
    bazel = folder / "bazel"
    bazel.write_text(_BAZEL)
    bazel.chmod(0o755)
    with (
        guarded_server(served, "ci", FAKES["git"]) as sources,
        guarded_server(served, "ci", FAKES["index"]) as index,
        guarded_server(served, "ci", FAKES["requirement"]) as files,
        _Watcher() as watcher,
    ):
        config = _config(sources, files.replace("127.0.0.1", "localhost"), bazel)
        parse_settings(yaml.safe_dump(config))
        path = folder / "accel_ci.yaml"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        environment = _environment(python, f"{index}/simple", private)
        printed = {}
        for name, arguments in _COMMANDS.items():
            command = [sys.executable, "-m", "accel_ci.cli", "-v", "--config", str(path), *arguments]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
            printed[name] = f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return Hunt(folder / ".accel_ci", printed, frozenset(watcher.found))


_COMMANDS = {
    "good": ("run", "manual", "--name", "good"),
    "broken": ("run", "manual", "--name", "broken", "--backend-ref", "refs/heads/broken"),
    "absent": ("run", "manual", "--name", "absent", "--backend-ref", "refs/heads/absent"),
    "source build": ("run", "nightly_rbe"),
    "status": ("status", "manual-good"),
    "failures": ("results", "failures", "manual-good"),
    "export": ("results", "to-sql", "manual-good"),
    "reproduce": ("reproduce", "manual-good", "test_that_looks"),
    "doctor": ("doctor",),
}
_BAZEL = """#!/bin/sh
for word in "$@"; do case "$word" in --bazelrc=*) cat "${word#--bazelrc=}" ;; esac; done
echo "BAZEL $*"
exit 1
"""


def _python_for_everybody() -> str | None:
    """The folder of an interpreter that another user can start; None where the tests are not root and need none."""
    if os.getuid() != 0:
        return None
    name = f"python3.{sys.version_info.minor}"
    found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        pytest.skip(f"as root, this needs a {name} that other users can start, in /usr/local/bin or /usr/bin")
    return str(Path(found).parent)


def _environment(python: str | None, index: str, private: Path) -> dict[str, str]:
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME", "PIP_FIND_LINKS")
    given = {name: value for name, value in os.environ.items() if name not in own}
    return {
        **given,
        "PATH": os.pathsep.join(filter(None, (python, given["PATH"]))),
        "PIP_EXTRA_INDEX_URL": index,
        "DOCKER_CONFIG": str(private / "docker"),
        "AWS_ACCESS_KEY_ID": FAKES["awsid"],
        "AWS_SECRET_ACCESS_KEY": FAKES["awskey"],
        "MY_HEADER": FAKES["rbeheader"],
        "ACCEL_CI_SQL_URL": f"postgresql://ci:{FAKES['sqlpassword']}@127.0.0.1:1/ci",
        "DEPLOY_TOKEN": FAKES["deploytoken"],
        "HUB_TOKEN": FAKES["hubtoken"],  # which tests get, as the configuration says, and print
    }


def _config(sources: str, files: str, bazel: Path) -> dict[str, object]:
    config = minimal_config()
    backend = {**config["backend"], "repository": f"{sources}/git/repository", "ref": "refs/heads/main"}  # type: ignore[dict-item]
    variant = {
        "name": "py3", "python": f"3.{sys.version_info.minor}", "torch": "torch==2.13.0+toy", "runtime": "none",
        "requirements": ["pytest", f"extra-package @ {files}/extra_package-1.0-py3-none-any.whl"],
        "torch_index": f"{files}/simple",
    }  # fmt: skip
    pool = {
        "cards": 1,
        "card_environment": "TOY_CARD",
        "pass_environment": ["HUB_TOKEN"],
        **({"user": OTHER_USER} if os.getuid() == 0 else {}),
    }
    jobs = {**config["jobs"], "nightly_rbe": {"cron": "0 3 * * *"}}  # type: ignore[dict-item]
    rbe = {"targets": ["//..."], "bazel": str(bazel), "headers": {"x-api-key": "MY_HEADER"}}
    upstream = {"repository": f"{sources}/git/upstream", "ref": "refs/heads/main"}
    own = {"backend": backend, "upstream": upstream, "variants": [variant], "pool": pool, "jobs": jobs, "rbe": rbe}
    return {**config, **own}


def _make_sources(served: Path, places: list[str]) -> None:
    probe = f"PLACES = {places!r}\n{PROBE}"
    files = {
        "backend/pyproject.toml": PYPROJECT, "backend/README.md": "# A toy\n", "MODULE.bazel": "",
        "backend/MODULE.bazel": "", "backend/setup.py": probe + SETUP,
        "backend/toy_backend/__init__.py": f"{probe}\nlook('import')\ndef autoload():\n    look('entry point')\n",
        "backend/tests/smoke/test_smoke.py": "def test_smoke():\n    pass\n",
        "backend/tests/unit/conftest.py": f"{probe}\nlook('collection')\n",
        "backend/tests/unit/test_unit.py": probe + TESTS,
    }  # fmt: skip
    for name in ("repository", "upstream"):
        (served / name).mkdir()
        git(served / name, "init", "--quiet", "-b", "main")
    commit(served / "upstream", {"version.txt": "1"})
    commit(served / "repository", files)
    git(served / "repository", "checkout", "--quiet", "-b", "broken")
    commit(served / "repository", {"backend/setup.py": probe + FAILING_SETUP})
    git(served / "repository", "checkout", "--quiet", "main")


def _make_wheels(served: Path) -> None:
    write_torch(served)
    write_package(served, "extra_package-1.0", {"extra_package.py": ""})


class _Watcher:
    """Looks at the command lines of all processes, as `ps` shows them to every user, again and again."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _watch(self) -> None:
        while not self._over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    line = path.read_bytes()
                    self.found |= {f"{kind}: {line!r}" for kind in kinds_in(line)}
            time.sleep(0.005)


def kinds_in(content: bytes) -> list[str]:
    """Return the kinds of fakes that a content has: as they are, in a URL, or in a header of basic authentication."""
    return [kind for kind, forms in _FORMS.items() if any(form in content for form in forms)]


def _forms_of(secret: str) -> set[bytes]:
    alone, with_user = (base64.b64encode(text.encode()) for text in (secret, f"ci:{secret}"))
    return {secret.encode(), quote(secret, safe="").encode(), alone.rstrip(b"=")[:-1], with_user[8:-4]}


_FORMS = {kind: _forms_of(secret) for kind, secret in FAKES.items()}


def _contents(file: Path) -> Iterator[bytes]:
    """A file as it is, and what it holds packed."""
    content = file.read_bytes()
    yield content
    if content[:2] == b"\x1f\x8b":
        with suppress(OSError, EOFError):
            yield gzip.decompress(content)
    if content[:4] == b"PK\x03\x04":
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                yield archive.read(name)
    if content[:4] == b"PAR1":
        yield repr(pq.read_table(file).to_pylist()).encode()
    if content[:15] == b"SQLite format 3":
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            for line in database.iterdump():
                yield line.encode("utf-8", "replace")


def test_the_hunters_were_there(hunt: Hunt) -> None:
    """Else nothing was tested: the builds, the tests and the exports ran, as far as each can."""
    assert "exit status 0" in hunt.printed["good"], hunt.printed["good"]
    assert "REFUSED" in hunt.printed["broken"], hunt.printed["broken"]  # of the build's output, the end is shown
    assert "absent" in hunt.printed["absent"]
    assert "git -C backend fetch" in hunt.printed["reproduce"], hunt.printed["reproduce"]
    assert "exit status 2" in hunt.printed["export"], hunt.printed["export"]
    texts = [text for file in (hunt.home / "results").rglob("*.parquet") for text in _contents(file)]
    looked = next(text for text in texts if b"LOOKED test" in text)
    as_user = OTHER_USER.partition(":")[0] if os.getuid() == 0 else str(os.getuid())
    assert f"LOOKED test as {as_user}".encode() in looked
    assert b'"HUB_TOKEN": "***"' in looked
    assert list((hunt.home / "runs").rglob("bazel.log")), hunt.printed["source build"]


def test_no_file_of_the_data_folder_has_a_secret(hunt: Hunt) -> None:
    files = [path for path in hunt.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {".json", ".db", ".parquet", ".html"} <= {path.suffix for path in files}
    found = {(str(path), kind) for path in files for content in _contents(path) for kind in kinds_in(content)}
    assert found == set()


def test_no_output_has_a_secret(hunt: Hunt) -> None:
    assert {name: kinds for name, text in hunt.printed.items() if (kinds := kinds_in(text.encode()))} == {}


def test_no_command_line_has_a_secret(hunt: Hunt) -> None:
    assert hunt.command_lines == frozenset()


def test_a_leak_would_be_found() -> None:
    """The search itself."""
    for kind, secret in FAKES.items():
        for text in (secret, f"https://ci:{secret}@host", base64.b64encode(f"ci:{secret}".encode()).decode()):
            assert kinds_in(f"x {text} y".encode()) == [kind]
