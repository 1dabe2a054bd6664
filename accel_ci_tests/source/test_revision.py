from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel_ci.config.settings import Project
from accel_ci.errors import ConfigError, SourceError
from accel_ci.model import Revision, Source, Trigger, trigger_of_key
from accel_ci.source.revision import confirmed_key, confirming_revision, is_trusted, resolve_revision, revision_key
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.project import minimal_config, with_changes

NOW = datetime(2026, 11, 27, 2, 5, tzinfo=timezone.utc)
UPSTREAM = Source("up", "main", "a" * 40)
BACKEND = Source("back", "main", "b" * 40)


@pytest.mark.parametrize(
    ("trigger", "pull_request", "slug", "key"),
    [
        ("nightly", None, None, "nightly-20261127"),
        ("intraday", None, None, "intraday-20261127T02"),
        ("main", None, None, "main-aaaaaaaaaaaa"),
        ("pr", 12, None, "pr-12-bbbbbbbbbbbb"),
        ("manual", None, "Try: new../allocator|x", "manual-try-new-allocator-x"),
        ("manual", None, None, "manual-20261127t020500"),
        ("sweep", None, None, "sweep-20261127"),
    ],
)
def test_keys(trigger: Trigger, pull_request: int | None, slug: str | None, key: str) -> None:
    assert revision_key(trigger, NOW, UPSTREAM, BACKEND, pull_request, slug) == key


@pytest.mark.parametrize(
    ("trigger", "ref", "trusted"),
    [
        ("nightly", "main", True),
        ("manual", "HEAD", True),
        ("manual", "main~2", True),
        ("manual", "refs/heads/a/topic", True),
        ("manual", "refs/tags/v1", True),
        ("manual", "team/configured", True),
        ("pr", "main", False),
        ("pr", "refs/pull/7/head", False),
        ("manual", "refs/pull/7/head", False),
        ("manual", "pull/7/head", False),
        ("manual", "refs/merge-requests/7/head", False),
        ("manual", "c" * 40, False),
        ("manual", "ccccccc", False),
    ],
)
@pytest.mark.parametrize("part", ["backend", "upstream"])
def test_only_branches_tags_and_what_is_configured_are_trusted(
    make_project: Callable[..., Project], trigger: Trigger, ref: str, trusted: bool, part: str
) -> None:
    configured = dict.fromkeys(["backend__ref", "upstream__ref"], "team/configured")
    settings = make_project(**with_changes(minimal_config(), configured)).settings
    source = Source("it", ref, "c" * 40)
    parts = (source, UPSTREAM) if part == "backend" else (BACKEND, source)
    revision = Revision("a-key", trigger, NOW, *parts)
    assert is_trusted(settings, revision) is trusted
    confirming = confirming_revision(replace(revision, key=f"{trigger}-1"))
    assert is_trusted(settings, confirming) is trusted, "no build of somebody else's failures is more trusted than theirs"


def test_a_component_that_is_a_pull_request_makes_a_revision_untrusted(make_project: Callable[..., Project]) -> None:
    revision = Revision(
        "manual-1", "manual", NOW, BACKEND, UPSTREAM, stack={"tool": Source("tool", "refs/pull/3/head", "1" * 40)}
    )
    assert not is_trusted(make_project().settings, revision)


def test_a_pull_request_needs_a_number() -> None:
    with pytest.raises(ConfigError, match="number"):
        revision_key("pr", NOW, UPSTREAM, BACKEND, None, None)


def test_changed_sources_get_a_new_key(repository: Path, make_project: Callable[..., Project]) -> None:
    project = make_project(upstream={"repository": repository.as_uri(), "ref": "refs/heads/main"})
    known: dict[str, Revision] = {}

    def resolve() -> Revision:
        revision = resolve_revision(project, "nightly", known.get, now=NOW)
        known[revision.key] = revision
        return revision

    first = resolve()
    assert (first.key, resolve()) == ("nightly-20261127", first)
    (repository / "backend" / "uncommitted.py").write_text("")
    second = resolve()
    assert (second.key, second.backend.dirty) == ("nightly-20261127.2", True)
    commit(repository, {"backend/committed.py": ""})
    assert resolve().key == "nightly-20261127.3"


def test_an_upstream_that_nothing_is_built_from_may_be_unreachable(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    project = make_project(upstream={"repository": "file:///nowhere", "ref": "main"})
    revision = resolve_revision(project, "nightly", lambda key: None, now=NOW)
    assert revision.upstream.sha is None
    assert "ls-remote" in (revision.upstream.note or "")


def test_an_upstream_that_a_variant_is_built_from_must_answer(
    repository: Path, make_project: Callable[..., Project]
) -> None:
    variant = {**minimal_config()["variants"][0], "torch_source": "main"}  # type: ignore[index]
    project = make_project(upstream={"repository": "file:///nowhere", "ref": "main"}, variants=[variant])
    with pytest.raises(SourceError, match="py3 is built from"):
        resolve_revision(project, "nightly", lambda key: None, now=NOW)


@pytest.mark.parametrize(("changes", "resolved"), [(5, True), (1000, False)])
def test_a_changing_working_tree_is_read_again(
    repository: Path, make_project: Callable[..., Project], changes: int, resolved: bool
) -> None:
    """A git filter stands in for a person who saves a file each time it is read."""
    (repository / ".gitattributes").write_text("*.live filter=live\n")
    count = repository.parent / "count"
    count.touch()
    save = f'cat; cat "{count}"; if [ "$(wc -c < "{count}")" -lt {changes} ]; then printf x >> "{count}"; fi'
    git(repository, "config", "filter.live.clean", save)
    (repository / "backend" / "a.live").write_text("")
    if resolved:
        revision = resolve_revision(make_project(), "nightly", lambda key: None, now=NOW)
        assert revision.backend.dirty
        assert count.stat().st_size == changes
    else:
        with pytest.raises(SourceError, match="keeps changing; start again"):
            resolve_revision(make_project(), "nightly", lambda key: None, now=NOW)


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_pull_request_is_that_ref_and_never_another_one(
    repository: Path, make_project: Callable[..., Project], is_remote: bool
) -> None:
    backend = {**minimal_config()["backend"], **({"repository": repository.as_uri()} if is_remote else {})}  # type: ignore[dict-item]
    project = make_project(backend=backend)
    with pytest.raises(SourceError, match=r"pull request 7 cannot be found: .*'refs/pull/7/head'.*--backend-ref"):
        resolve_revision(project, "pr", lambda key: None, now=NOW, pull_request=7)
    main = git(repository, "rev-parse", "HEAD")
    sha = commit(repository, {"backend/proposed.py": ""})
    git(repository, "update-ref", "refs/pull/7/head", sha)
    git(repository, "reset", "--quiet", "--hard", main)
    revision = resolve_revision(project, "pr", lambda key: None, now=NOW, pull_request=7)
    assert (revision.key, revision.backend.sha) == (f"pr-7-{sha[:12]}", sha)
    named = resolve_revision(project, "pr", lambda key: None, now=NOW, pull_request=7, backend_ref="refs/heads/main")
    assert named.backend.sha == main


@pytest.mark.parametrize("key", ["nightly-20261127", "nightly-20261127.2", "pr-12-bbbbbbbbbbbb", "main-aaaaaaaaaaaa"])
def test_a_revision_that_confirms_another_has_its_sources_and_a_key_that_names_it(key: str) -> None:
    confirmed = Revision(key, "pr" if key.startswith("pr") else "nightly", NOW, BACKEND, UPSTREAM, ("unit",))
    first, second = confirming_revision(confirmed), confirming_revision(confirmed, 2)
    assert (first.key, second.key) == (f"confirm-{key}", f"confirm-2-{key}")
    assert {confirmed_key(first.key), confirmed_key(second.key), first.confirms, second.confirms} == {key}
    assert confirmed_key(key) is None
    assert (first.trigger, first.backend, first.upstream) == ("confirm", BACKEND, UPSTREAM)
    assert first.tested_as == trigger_of_key(key), "a pull request's tests stay a stranger's"


def test_a_revision_to_confirm_is_not_resolved_anew(make_project: Callable[..., Project]) -> None:
    with pytest.raises(ConfigError, match="name the build"):
        resolve_revision(make_project(), "confirm", dict[str, Revision]().get, now=NOW)


def test_a_sweep_needs_a_suite_whose_enabled_tests_are_listed(make_project: Callable[..., Project]) -> None:
    with pytest.raises(ConfigError, match="nothing to sweep"):
        resolve_revision(make_project(), "sweep", dict[str, Revision]().get, now=NOW)
