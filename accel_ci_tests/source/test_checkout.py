from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from accel_ci.errors import SourceError
from accel_ci.model import Source
from accel_ci.source.checkout import Contents, checkout, checkout_root
from accel_ci.source.refs import resolve_source
from accel_ci_tests.fixtures.checkout import commit, git

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
ODD = os.fsdecode(b"backend/caf\xe9 \xff.txt")


@pytest.fixture
def odd_repository(repository: Path) -> Path:
    """A repository with all that `git archive` or a plain copy would change or lose."""
    files = {
        ".gitattributes": "data export-ignore\nversion.txt export-subst\n*.dos eol=crlf\n*.unix eol=lf\n",
        "backend/data/x.txt": "data\n",
        "backend/version.txt": "$Format:%H$\n",
        "backend/a.dos": "one\ntwo\n",
        "backend/a.unix": "one\ntwo\n",
        "backend/run.sh": "#!/bin/sh\n",
        "data/shared.txt": "beside the package\n",
        ODD: "odd\n",
    }
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (repository / "backend" / "run.sh").chmod(0o755)
    (repository / "backend" / "link").symlink_to("../data/shared.txt")
    (repository / "backend" / "folder").symlink_to("data")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "odd files")
    git(repository, "tag", "-a", "-m", "release", "v1.2")
    commit(repository, {"README.md": "one more\n"})
    return repository


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The type and permissions of the owner, and the content, of every file and link below a folder, without `.git`."""
    found = {}
    for path in folder.rglob("*"):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode
        if not name.startswith(".git/") and not stat.S_ISDIR(mode):
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[name] = (mode & 0o170700, content)
    return found


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_checkout_is_what_git_checkout_gives(odd_repository: Path, tmp_path: Path, is_remote: bool) -> None:
    address = odd_repository.as_uri() if is_remote else "repository"
    state = resolve_source(address, "refs/heads/main", "backend", tmp_path, timeout_s=30)
    files = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=30)
    git(tmp_path, "clone", "--quiet", str(odd_repository), "clone")
    assert contents(files.parent) == contents(tmp_path / "clone")
    assert (files / "data" / "x.txt").read_text() == "data\n"
    assert (files / "version.txt").read_text() == "$Format:%H$\n"
    assert (files / "a.dos").read_bytes() == b"one\r\ntwo\r\n"
    assert checkout_root(files) == files.parent
    assert git(files, "status", "--porcelain") == ""
    assert git(files, "describe", "--dirty") == git(odd_repository, "describe")
    assert git(files, "rev-list", "--count", "HEAD") == git(odd_repository, "rev-list", "--count", "HEAD")


def test_uncommitted_changes_are_those_of_the_folder(odd_repository: Path, tmp_path: Path) -> None:
    (odd_repository / "backend" / "run.sh").unlink()
    (odd_repository / "backend" / "new.dos").write_text("new\n")
    (odd_repository / "data" / "shared.txt").write_text("changed elsewhere\n")
    git(odd_repository, "add", "data")
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    files = checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)
    assert not (files / "run.sh").exists()
    assert (files / "new.dos").read_bytes() == b"new\r\n"
    assert (files / "link").read_text() == "beside the package\n"
    assert git(files, "describe", "--dirty").endswith("-dirty")
    git(odd_repository, "reset", "--quiet", "--hard")
    (odd_repository / "backend" / "new.dos").unlink()
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    assert not state.dirty


def test_a_second_commit_is_fetched_in_part(odd_repository: Path, tmp_path: Path) -> None:
    """The mirror has what earlier checkouts needed, and the tag that was moved since."""
    address, sources = odd_repository.as_uri(), tmp_path / "sources"
    for _ in range(2):
        state = resolve_source(address, "main", ".", tmp_path, timeout_s=30)
        files = checkout(state, address, tmp_path, sources, timeout_s=30)
        assert git(files, "describe", "--tags") == git(odd_repository, "describe", "--tags")
        commit(odd_repository, {"backend/later.py": state.label})
        git(odd_repository, "tag", "--force", "-a", "-m", "moved", "v1.2")
    assert len(list((sources / ".mirrors").glob("*.git"))) == 1


def test_a_shallow_clone_can_be_the_repository(odd_repository: Path, tmp_path: Path) -> None:
    """Continuous integration often clones without history."""
    git(tmp_path, "clone", "--quiet", "--depth", "1", odd_repository.as_uri(), "shallow")
    for _ in range(2):
        state = resolve_source("shallow", "HEAD", "backend", tmp_path, timeout_s=30)
        files = checkout(state, "shallow", tmp_path, tmp_path / "sources", timeout_s=30)
        assert contents(files.parent) == contents(tmp_path / "shallow")
        commit(tmp_path / "shallow", {"backend/new.py": state.label})


def test_a_fetch_that_was_killed_does_not_block_the_next_one(odd_repository: Path, tmp_path: Path) -> None:
    address, sources = odd_repository.as_uri(), tmp_path / "sources"
    checkout(resolve_source(address, "v1.2", ".", tmp_path, timeout_s=30), address, tmp_path, sources, timeout_s=30)
    mirror = next((sources / ".mirrors").glob("*.git"))
    for name in ("packed-refs.lock", "config.lock", "shallow.lock", "HEAD.lock"):
        (mirror / name).touch()
    state = resolve_source(address, "main", ".", tmp_path, timeout_s=30)
    assert checkout(state, address, tmp_path, sources, timeout_s=30).is_dir()


def test_settings_of_the_user_change_nothing(odd_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's git may convert line ends, run hooks, and give templates to new repositories."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
        (hooks / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\nautocrlf = true\nhooksPath = {hooks}\nsymlinks = false\n")
    monkeypatch.setenv("HOME", str(home))
    address = odd_repository.as_uri()
    state = resolve_source(address, "main", "backend", tmp_path, timeout_s=30)
    files = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=30)
    assert (files / "a.unix").read_bytes() == (files.parent / "README.md").read_bytes().replace(b"one more", b"one\ntwo")
    assert (files / "version.txt").read_bytes() == b"$Format:%H$\n"
    assert (files / "link").is_symlink()
    assert not (tmp_path / "pwned").exists()


@pytest.fixture
def with_submodule(repository: Path, tmp_path: Path) -> Path:
    """A repository with a submodule at a relative address, in which is another one."""
    for name, files in (("inner", {"inner.txt": "inner\n"}), ("library", {"library.txt": "library\n"})):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
        commit(tmp_path / name, files)
    add = ["-c", "protocol.file.allow=always", "submodule", "add", "--quiet"]
    git(tmp_path / "library", *add, "../inner", "inner")
    git(tmp_path / "library", "commit", "--quiet", "-m", "a submodule")
    git(repository, *add, "../library", "backend/third party")
    git(repository, "commit", "--quiet", "-m", "a submodule")
    return repository


@pytest.mark.parametrize("is_remote", [True, False])
def test_submodules_are_part_of_the_sources(with_submodule: Path, tmp_path: Path, is_remote: bool) -> None:
    address = with_submodule.as_uri() if is_remote else "repository"
    state = resolve_source(address, "main", "backend", tmp_path, timeout_s=30)
    files = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=30)
    assert (files / "third party" / "library.txt").read_text() == "library\n"
    assert (files / "third party" / "inner" / "inner.txt").read_text() == "inner\n"
    assert git(files, "status", "--porcelain") == ""
    without = checkout(state, address, tmp_path, tmp_path / "sources", timeout_s=30, contents=Contents(submodules=False))
    assert not list((without / "third party").iterdir())


def test_a_submodule_that_cannot_be_had_is_named(with_submodule: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "library")
    state = resolve_source("repository", "main", "backend", tmp_path, timeout_s=30)
    with pytest.raises(SourceError, match=r"third party.*backend\.submodules"):
        checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)


def test_uncommitted_changes_beside_submodules(with_submodule: Path, tmp_path: Path) -> None:
    (with_submodule / "backend" / "new.py").write_text("x = 1\n")
    state = resolve_source("repository", "HEAD", "backend", tmp_path, timeout_s=30)
    files = checkout(state, "repository", tmp_path, tmp_path / "sources", timeout_s=30)
    assert (files / "new.py").is_file()
    assert (files / "third party" / "library.txt").is_file()


@pytest.fixture
def with_lfs(repository: Path) -> Path:
    """A repository with files that Git LFS keeps, whose content is in its LFS store, and a file that only looks so."""
    content = b"the data\n"
    digest = hashlib.sha256(content).hexdigest()
    pointer = POINTER.format(digest=digest, size=len(content))
    (repository / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    for name in ("a.bin", "b c.bin", "not-lfs.txt"):
        (repository / "backend" / name).write_text(pointer)
    off = ["-c", "filter.lfs.clean=cat", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"]
    git(repository, *off, "add", "--all")
    git(repository, *off, "commit", "--quiet", "-m", "data")
    store = repository / ".git" / "lfs" / "objects" / digest[:2] / digest[2:4]
    store.mkdir(parents=True)
    (store / digest).write_bytes(content)
    return repository


def lfs_state(repository: Path, root: Path) -> Source:
    """The state of the branch, which has no uncommitted changes."""
    return resolve_source(str(repository), "refs/heads/main", "backend", root, timeout_s=30)


def test_files_of_git_lfs_are_named_where_it_is_missing(
    with_lfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_git = tmp_path / "bin"
    only_git.mkdir()
    for program in ("git", "sh", "sed", "uname", "basename", "cat"):
        (only_git / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(only_git))
    state = lfs_state(with_lfs, tmp_path)
    with pytest.raises(SourceError, match=r"Git LFS keeps backend/a\.bin, backend/b c\.bin, and git-lfs is not installed"):
        checkout(state, str(with_lfs), tmp_path, tmp_path / "sources", timeout_s=30)
    files = checkout(state, str(with_lfs), tmp_path, tmp_path / "sources", timeout_s=30, contents=Contents(lfs=False))
    assert (files / "a.bin").read_text().startswith("version https://git-lfs")


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
def test_files_of_git_lfs_are_fetched(with_lfs: Path, tmp_path: Path) -> None:
    files = checkout(lfs_state(with_lfs, tmp_path), str(with_lfs), tmp_path, tmp_path / "sources", timeout_s=30)
    assert [(files / name).read_text() for name in ("a.bin", "b c.bin")] == ["the data\n"] * 2
    assert (files / "not-lfs.txt").read_text().startswith("version")
    shutil.rmtree(with_lfs / ".git" / "lfs")
    git(with_lfs, "-c", "filter.lfs.process=", "-c", "filter.lfs.clean=cat", "commit", "--allow-empty", "-qm", "one more")
    with pytest.raises(SourceError, match=r"Git LFS keeps backend/a\.bin"):
        checkout(lfs_state(with_lfs, tmp_path), str(with_lfs), tmp_path, tmp_path / "sources", timeout_s=30)


def test_a_tag_object_is_not_taken_for_a_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "-a", "-m", "release", "v1")
    address, tag = repository.as_uri(), git(repository, "rev-parse", "v1")
    with pytest.raises(SourceError, match="is a tag, not a commit"):
        checkout(Source(address, tag, tag), address, tmp_path, tmp_path / "sources", timeout_s=30)


def test_a_repository_elsewhere_cannot_take_files_of_this_machine(with_submodule: Path, tmp_path: Path) -> None:
    """Its submodules may not have addresses on this machine. `git daemon` stands in for the other machine."""
    with GitDaemon(tmp_path) as address:
        state = resolve_source(f"{address}/repository", "main", "backend", tmp_path, timeout_s=30)
        files = checkout(state, f"{address}/repository", tmp_path, tmp_path / "sources", timeout_s=30)
        assert (files / "third party" / "library.txt").is_file(), "relative addresses stay on the other machine"
        text = (with_submodule / ".gitmodules").read_text().replace("../library", (tmp_path / "library").as_uri())
        commit(with_submodule, {".gitmodules": text})
        state = resolve_source(f"{address}/repository", "main", "backend", tmp_path, timeout_s=30)
        with pytest.raises(SourceError, match="transport 'file' not allowed"):
            checkout(state, f"{address}/repository", tmp_path, tmp_path / "sources", timeout_s=30)


class GitDaemon:
    """A server of the repositories in a folder, on a free port of loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        import socket
        import time

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = ["git", "daemon", "--export-all", "--listen=127.0.0.1", f"--port={port}", f"--base-path={self._folder}"]
        self._process = subprocess.Popen([*command, str(self._folder)], stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return f"git://127.0.0.1:{port}"
            time.sleep(0.05)
        raise AssertionError("git daemon does not listen")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, 15)
        self._process.wait()
