"""Building the components of a stack in order, once for the same inputs, and running their unit tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from accel_ci.config.settings import Project
from accel_ci.config.stack_settings import Component, Stack
from accel_ci.errors import BuildError, ConfigError
from accel_ci.model import Build, DeviceTestResults, SoftwareStack
from accel_ci.process.own_user import OwnUser
from accel_ci.progress import LineProgress
from accel_ci.results.store import ResultsStore
from accel_ci.source.revision import resolve_stack
from accel_ci.stack.build import BuiltComponent, bring_stack, build_stack
from accel_ci.stack.unit_tests import run_unit_tests
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.storage.scratch_folder import scratch_folder
from accel_ci.wheels.package_source import packages_of
from accel_ci.wheels.uv_environment import PackageSource
from accel_ci_tests.fixtures.checkout import commit, git
from accel_ci_tests.fixtures.stack_repositories import make_stack

BUILD = Build("nightly-20261127", "py3")


@dataclass(frozen=True)
class Site:
    """A project with a stack, its artifacts and its results."""

    project: Project
    artifacts: ArtifactStore
    results: ResultsStore

    @property
    def section(self) -> Stack:
        """The section `stack`."""
        assert self.project.settings.stack is not None
        return self.project.settings.stack

    @property
    def cache(self) -> Path:
        """The folder of the builds."""
        return self.project.home / "cache" / "stack"

    def build(self, **refs: str) -> SoftwareStack:
        """Build the stack, some components at other refs."""
        sources = resolve_stack(self.project, refs)
        packages = packages_of(self.project.settings, self.project.settings.variants[0])
        with LineProgress().step("stack") as step:
            return build_stack(self.project, self.section, sources, packages, self.artifacts, self.cache, step)

    def test(self, stack: SoftwareStack) -> dict[tuple[str, str], str]:
        """Run the unit tests; return the outcomes by suite and test."""
        packages = packages_of(self.project.settings, self.project.settings.variants[0])
        with LineProgress().step("tests") as step:
            run = run_unit_tests(
                self.section, stack, packages, self.cache, BUILD, date(2026, 11, 27), self.artifacts, self.results, step
            )
        assert isinstance(run, DeviceTestResults)
        rows = [row for stored in self.results.suites(build=BUILD) for row in self.results.read(stored).to_pylist()]
        assert sum(run.counts.values()) == len(rows)
        return {(row["suite"], row["test"]): row["outcome"] for row in rows}


@pytest.fixture
def site(tmp_path: Path, make_project: Callable[..., Project]) -> Callable[..., Site]:
    def make(change: Callable[[dict[str, Any]], None] = lambda section: None) -> Site:
        section = make_stack(tmp_path)
        change(section)
        project = make_project(stack=section)
        return Site(project, ArtifactStore(tmp_path / "artifacts"), ResultsStore(tmp_path / "results"))

    return make


def test_components_are_built_in_order_into_one_prefix(site: Callable[..., Site]) -> None:
    made = site().build()
    answer = subprocess.run(
        [sys.executable, "-c", "import stack_tool; print(stack_tool.BUILT_WITH)"], env=made.environment, capture_output=True
    )
    assert answer.stdout == b"42\n", answer.stderr
    assert [(each.name, each.reused) for each in made.components] == [("library", False), ("tool", False)]


def test_the_archive_has_what_is_installed_and_depends_on_nothing_else(site: Callable[..., Site], tmp_path: Path) -> None:
    here = site()
    first = here.build()
    with tarfile.open(here.artifacts.path(first.archive)) as archive:
        assert archive.getnames() == ["lib", "lib/stack_library.py", "lib/stack_tool.py"]
    for record in here.cache.glob("*/component.json"):
        record.unlink()  # as if it were built for the first time
    again = here.build()
    assert not any(each.reused for each in again.components)
    assert (again.archive, again.digest) == (first.archive, first.digest)


def test_the_same_inputs_are_built_once_and_a_change_builds_what_comes_after_it(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    here = site()
    first = here.build()
    assert [each.reused for each in here.build().components] == [True, True]
    commit(tmp_path / "tool", {"README": "changed"})
    after_tool = here.build()
    assert [each.reused for each in after_tool.components] == [True, False]
    commit(tmp_path / "library", {"library.py": "ANSWER = 7\n"})
    after_library = here.build()
    assert [each.reused for each in after_library.components] == [False, False]
    assert len({first.digest, after_tool.digest, after_library.digest}) == 3


def test_files_that_are_gone_come_back_from_the_archive(site: Callable[..., Site]) -> None:
    here = site()
    made = here.build()
    shutil.rmtree(Path(made.prefix).parent)
    bring_stack(made, here.artifacts)
    assert sorted(path.name for path in Path(made.prefix, "lib").iterdir()) == ["stack_library.py", "stack_tool.py"]
    assert [each.reused for each in here.build().components] == [True, False], "the built tree has not come back"


def test_a_link_that_leads_out_is_not_restored(site: Callable[..., Site]) -> None:
    def links(section: dict[str, Any]) -> None:
        section["components"][1]["build"].append(["ln", "-s", "/etc/hosts", "{prefix}/lib/hosts"])

    here = site(links)
    made = here.build()
    shutil.rmtree(Path(made.prefix).parent)
    with pytest.raises(BuildError, match=r"cannot be restored from stack\.tar\.gz"):
        bring_stack(made, here.artifacts)
    assert not Path(made.prefix).exists()


def test_what_was_changed_after_its_build_is_built_anew(site: Callable[..., Site]) -> None:
    here = site()
    made = here.build()
    (Path(made.prefix) / "lib" / "stack_tool.py").write_text("BUILT_WITH = 'a forgery'\n")
    again = here.build()
    assert [each.reused for each in again.components] == [True, False]
    assert again.archive == made.archive


def test_a_component_at_another_ref_leaves_the_others_as_they_are(site: Callable[..., Site], tmp_path: Path) -> None:
    here = site()
    git(tmp_path / "tool", "checkout", "--quiet", "-b", "topic")
    sha = commit(tmp_path / "tool", {"README": "a topic"})
    git(tmp_path / "tool", "checkout", "--quiet", "main")
    main, topic = (resolve_stack(here.project, refs) for refs in ({}, {"tool": "refs/heads/topic"}))
    assert topic["tool"].sha == sha != main["tool"].sha
    assert topic["library"] == main["library"]
    with pytest.raises(ConfigError, match="the stack has no component 'took'; known: library, tool"):
        resolve_stack(here.project, {"took": "main"})


def test_a_component_that_was_built_as_a_pull_request_is_built_anew_once_it_is_merged(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    here = site()
    git(tmp_path / "tool", "update-ref", "refs/pull/3/head", "HEAD")
    assert [each.reused for each in here.build(tool="refs/pull/3/head").components] == [False, False]
    assert [each.reused for each in here.build(tool="refs/pull/3/head").components] == [True, True]
    assert [each.reused for each in here.build().components] == [True, False]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run code as another user")
def test_code_of_other_builds_cannot_change_the_tree_that_a_component_was_built_in() -> None:
    component = Component.model_validate({"name": "tool", "repository": "tool", "build": [["true"]]})
    user = OwnUser(23459, 23459)
    with scratch_folder("test") as folder:
        folder.chmod(0o755)
        place = BuiltComponent(component, folder, PackageSource.from_settings(None, user=user))
        place.sources.mkdir()
        (place.sources / "test_tool.py").write_text("assert tool() == 42\n")
        forge = ["/bin/sh", "-c", "echo '# passes' > test_tool.py && id -u"]
        with place.lent_sources():
            assert place.run(forge).output == "23459\n", "the component's own commands may"
        (place.sources / "test_tool.py").write_text("assert tool() == 42\n")
        assert "Permission denied" in place.run(forge).output
        assert (place.sources / "test_tool.py").read_text() == "assert tool() == 42\n"


def test_a_build_that_fails_names_the_component_its_command_and_its_last_words(site: Callable[..., Site]) -> None:
    def breaks(section: dict[str, Any]) -> None:
        section["components"][0]["build"].append(["python3", "-c", "import sys; sys.exit('no such header')"])

    with pytest.raises(BuildError) as failed:
        site(breaks).build()
    text = str(failed.value)
    assert "the component library at g" in text
    assert "ended with the status 1" in text
    assert "no such header" in text


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        pytest.param(["no-such-program-1"], "no-such-program-1 is not installed", id="missing"),
        pytest.param(["sleep", "60"], "did not end within 1 s", id="slow"),
        pytest.param(["true"], "install no file", id="nothing"),
    ],
)
def test_a_build_that_cannot_be_used_has_its_reason(site: Callable[..., Site], command: list[str], problem: str) -> None:
    def only(section: dict[str, Any]) -> None:
        section["components"] = [{**section["components"][0], "build": [command], "timeout_seconds": 1}]

    with pytest.raises(BuildError, match=problem):
        site(only).build()


def test_unit_tests_are_suites_with_the_tests_of_their_reports_and_their_commands(site: Callable[..., Site]) -> None:
    here = site()
    outcomes = here.test(here.build())
    library = {test: outcome for (suite, test), outcome in outcomes.items() if suite == "stack:library"}
    [command] = [test for test in library if test.startswith("command 1: ")]
    assert {test.rpartition("::")[2]: outcome for test, outcome in library.items()} == {
        "test_answer": "passed", "test_wrong": "failed", command: "failed", "reports": "passed",
    }  # fmt: skip
    [tool] = [outcome for (suite, _), outcome in outcomes.items() if suite == "stack:tool"]
    assert tool == "passed", "it finds what both have installed"


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        pytest.param(["true"], "no command has written a report", id="none"),
        pytest.param(["sh", "-c", "mkdir -p reports; echo '<testsuites/>' > reports/a.xml"], "no_test_cases", id="empty"),
        pytest.param(["sh", "-c", "mkdir -p reports; ln -s /etc/hosts reports/a.xml"], "no command", id="link"),
    ],
)
def test_reports_without_a_test_are_no_pass(site: Callable[..., Site], command: list[str], doubt: str) -> None:
    def only(section: dict[str, Any]) -> None:
        section["components"][0]["test"] = [command]

    here = site(only)
    outcomes = here.test(here.build())
    assert outcomes["stack:library", "reports"] == "error"
    [stored] = here.results.suites(build=BUILD, suite="stack:library")
    [message] = [row["message"] for row in here.results.read(stored).to_pylist() if row["test"] == "reports"]
    assert doubt in message


def test_reports_of_an_earlier_run_do_not_count(site: Callable[..., Site]) -> None:
    here = site()
    made = here.build()
    assert here.test(made)["stack:library", "reports"] == "passed"
    old = here.section.components[0].model_copy(update={"test": (("true",),)})
    changed = Site(
        Project(
            here.project.settings.model_copy(
                update={"stack": here.section.model_copy(update={"components": (old, here.section.components[1])})}
            ),
            here.project.config_path,
            here.project.home,
        ),
        here.artifacts,
        here.results,
    )
    assert changed.test(made)["stack:library", "reports"] == "error"
