from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.source.checkout import checkout
from accel_ci.source.git_credentials import git_credentials, logins_of, without_address_credentials
from accel_ci.source.refs import remote_sha, resolve_source
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.guarded_server import guarded_server

PASSWORD = "p@ss/w:rd%1"


@pytest.fixture
def address(repository: Path) -> Iterator[str]:
    """The address of the repository on a server that wants a password, with the password."""
    with guarded_server(repository.parent, "ci", PASSWORD) as server:
        yield server.replace(PASSWORD, "p%40ss%2Fw%3Ard%251") + "/git/repository"


def test_a_guarded_repository_is_resolved_and_fetched(repository: Path, address: str, tmp_path: Path) -> None:
    state = resolve_source(address, "refs/heads/main", "backend", tmp_path, timeout_s=60)
    assert state.sha == git(repository, "rev-parse", "HEAD")
    files = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=60)
    assert [path.name for path in files.iterdir()] == ["pyproject.toml"]
    kept = [path for path in (tmp_path / "sources").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"p%40ss" in path.read_bytes() or PASSWORD.encode() in path.read_bytes()]


def test_a_submodule_with_a_relative_address_is_fetched_with_the_password(
    repository: Path, address: str, tmp_path: Path
) -> None:
    part = repository.parent / "part"
    part.mkdir()
    git(part, "init", "--quiet", "-b", "main")
    commit(part, {"a.txt": "a"})
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part), "backend/part")
    git(repository, "config", "-f", ".gitmodules", "submodule.backend/part.url", "../part")
    commit(repository, {})
    state = resolve_source(address, "refs/heads/main", "backend", tmp_path, timeout_s=60)
    files = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=60)
    assert (files / "part" / "a.txt").read_text() == "a"


def test_a_wrong_password_is_told_without_it(address: str) -> None:
    with pytest.raises(SourceError, match="check the credentials") as refused:
        remote_sha(address.replace("%251", "other"), "refs/heads/main", timeout_s=60)
    assert "p%40ss" not in str(refused.value)


def test_the_words_of_a_command_have_no_password() -> None:
    words = ["fetch", "--", "https://ci:secret@h:8443/x", "ssh://git@h/x"]
    assert without_address_credentials(words) == ["fetch", "--", "https://h:8443/x", "ssh://git@h/x"]
    assert logins_of([*words, "git+https://token@g/y"]) == {"https://h:8443": ("ci", "secret"), "https://g": ("token", "")}


def test_the_helper_answers_from_its_environment() -> None:
    made = git_credentials({"https://h": ("ci", PASSWORD)})
    helper = made.settings[-1][1]
    assert PASSWORD not in helper
    done = subprocess.run(
        ["sh", "-c", f"{helper.removeprefix('!')} get"], env=dict(made.variables), capture_output=True, text=True, timeout=30
    )
    assert done.stdout == f"username=ci\npassword={PASSWORD}\n"
