from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import SourceError
from accel_ci.rbe.source_tree import make_source_tree
from accel_ci.source.revision import resolve_revision
from accel_ci_tests.fixtures.checkout import commit, git

PATCH = "--- a/value.txt\n+++ b/value.txt\n@@ -1 +1 @@\n-upstream\n+patched\n"


@pytest.fixture
def make(tmp_path: Path, repository: Path, make_project: Callable[..., Project]) -> Callable[..., Any]:
    """Makes the tree of the current sources for a section `rbe`."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "--quiet")
    commit(upstream, {"WORKSPACE": "", "value.txt": "upstream\n", "below/WORKSPACE": ""})
    commit(repository, {"backend/MODULE.bazel": "", "backend/patches/1.patch": PATCH})

    def _make(**rbe: object) -> Any:
        project = make_project(rbe={"targets": ["//..."], **rbe})
        assert project.settings.rbe is not None
        revision = resolve_revision(project, "nightly", lambda key: None)
        return make_source_tree(project, project.settings.rbe, revision)

    return _make


def test_without_patches_the_checkout_is_the_tree(make: Callable[..., Any]) -> None:
    built = make()
    assert (Path(built.workspace) / "MODULE.bazel").is_file()
    assert (built.patches, built.upstream) == ((), None)


def test_upstream_is_patched_once_in_a_copy(make: Callable[..., Any]) -> None:
    plain = make(workspace="upstream/below")
    built = make(workspace="upstream", patches="patches")
    assert (Path(built.workspace) / "value.txt").read_text() == "patched\n"
    assert (Path(plain.workspace).parent / "value.txt").read_text() == "upstream\n", "the checkout stays as it is"
    assert (built.patches, built.already_applied, built.reused) == (("1.patch",), (), False)
    assert built.upstream is not None
    again = make(workspace="upstream", patches="patches")
    assert (again.workspace, again.digest, again.reused) == (built.workspace, built.digest, True)


def test_other_patches_make_another_tree(make: Callable[..., Any], repository: Path) -> None:
    first = make(workspace="upstream", patches="patches")
    commit(repository, {"backend/patches/1.patch": PATCH.replace("+patched", "+otherwise")})
    second = make(workspace="upstream", patches="patches")
    assert first.digest != second.digest
    assert (Path(second.workspace) / "value.txt").read_text() == "otherwise\n"


def test_the_backend_is_patched_where_the_workspace_is_in_it(make: Callable[..., Any], repository: Path) -> None:
    commit(repository, {"backend/value.txt": "upstream\n"})
    built = make(patches="patches")
    assert (Path(built.workspace) / "value.txt").read_text() == "patched\n"
    assert (built.patches, built.upstream) == (("1.patch",), None)


def test_a_patch_that_does_not_apply_leaves_no_tree(make: Callable[..., Any], repository: Path, tmp_path: Path) -> None:
    commit(repository, {"backend/patches/2.patch": PATCH.replace("-upstream", "-neither").replace("+patched", "+other")})
    with pytest.raises(SourceError, match=r"^2\.patch does not apply to value\.txt: hunk 1"):
        make(workspace="upstream", patches="patches")
    assert not [path for path in (tmp_path / ".accel_ci" / "rbe" / "sources").iterdir() if path.is_dir()]


def test_a_folder_without_a_workspace_is_named(make: Callable[..., Any]) -> None:
    with pytest.raises(SourceError, match=r"rbe\.workspace: backend/patches of nightly-\d+ has neither MODULE\.bazel nor"):
        make(workspace="backend/patches")


def test_submodules_are_checked_out_unless_configured_otherwise(
    make: Callable[..., Any], repository: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "--quiet")
    commit(library, {"library.txt": "here\n"})
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(library), "backend/third_party")
    git(repository, "commit", "--quiet", "-m", "a submodule")
    without, built = Path(make(submodules=False).workspace), Path(make().workspace)
    assert not (without / "third_party" / "library.txt").exists()
    assert (built / "third_party" / "library.txt").read_text() == "here\n"
    assert not list(built.rglob(".git"))
