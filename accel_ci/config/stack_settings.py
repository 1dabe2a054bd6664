"""The section `stack`: the internal components that the backend runs on, how each is built and tested, and their use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from accel_ci.config.github_settings import PullRequestRefs
from accel_ci.config.relay_settings import FullName
from accel_ci.config.section import Mistake, Section, as_mapping, as_sequence
from accel_ci.config.values import EnvironmentName, GitRef, Name, RelativePath, Seconds

Command = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""A command as a list of its words. No shell reads it."""


class Component(Section):
    """A repository of the stack: its commands run in a copy of its sources, one after another.

    `build` installs into the folder that `{prefix}` stands for, in which the components before it are installed already.
    Each command of `test` is a test, which passes with the exit status 0; the tests in `reports`, paths or patterns of
    files in JUnit's format that the commands write, count beside them. The limit is for each command. With `release`, its
    tags of semantic versions, such as v1.2.3, release the image of a build. With `changes`, refs of git are its change
    requests, each of which is built: its repository is an internal one, where everybody who can open one is trusted. With
    `github`, its repository there, each gets check runs.
    """

    name: Name
    repository: str
    ref: GitRef = "HEAD"
    submodules: bool = True
    lfs: bool = True
    build: Annotated[tuple[Command, ...], Field(min_length=1)]
    test: tuple[Command, ...] = ()
    reports: tuple[RelativePath, ...] = ()
    environment: dict[EnvironmentName, str] = {}
    timeout_seconds: Seconds = 3600
    release: bool = False
    changes: PullRequestRefs | None = None
    github: FullName | None = None


class Stack(Section):
    """The components in the order in which they are built.

    `environment` is what wheel builds and tests get, with `{stack}` for the folder that everything is installed in. A
    sensor looks every `check_every_seconds` whether a component has moved, one whether it has a new release tag, and one
    for its change requests; they start with the daemon if they are `enabled`.
    """

    components: Annotated[tuple[Component, ...], Field(min_length=1)]
    environment: dict[EnvironmentName, str] = {}
    enabled: bool = False
    check_every_seconds: Annotated[int, Field(ge=5)] = 60

    def component(self, name: str) -> Component | None:
        """The component of that name; None if there is none."""
        return next((each for each in self.components if each.name == name), None)

    @classmethod
    def mistakes(cls, content: dict[str, Any]) -> Iterator[Mistake]:
        """Find components that cannot be told apart, reports that nothing writes, and releases that go nowhere."""
        names: list[Any] = []
        for index, entry in enumerate(as_sequence(as_mapping(content.get("stack")).get("components"))):
            component = as_mapping(entry)
            name, where = component.get("name"), ("stack", "components", index)
            if name is not None and name in names:
                yield (*where, "name"), f"{name!r} is used twice; names of components are unique"
            names.append(name)
            if component.get("github") and not component.get("changes"):
                yield (*where, "github"), "needs 'changes': the change requests that get check runs there"
            if component.get("reports") and not component.get("test"):
                yield (*where, "reports"), "needs 'test': the commands that write the reports"
            if component.get("release") is True and not as_mapping(content.get("release")).get("images"):
                yield (*where, "release"), "needs 'release.images': the repository that the image goes to"
