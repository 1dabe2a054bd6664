"""The sections `github` and `pull_requests`: the backend's repository on GitHub, and what its pull requests get."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from accel_ci.config.relay_settings import FullName
from accel_ci.config.section import Mistake, Section, as_mapping, as_sequence
from accel_ci.config.values import ContainerUser, Endpoint, GitRef


class GitHubApp(Section):
    """The GitHub App that acts: its id or client id, and a file with its private key, relative to the configuration."""

    id: Annotated[str, Field(pattern=r"\A[A-Za-z0-9._-]{1,100}\z", coerce_numbers_to_str=True)]
    private_key_file: str
    installation: Annotated[int, Field(ge=1)] | None = None


class GitHub(Section):
    """The backend's repository on GitHub, and the API that serves it.

    Requests have the token of the `app`, else the one in the variable `ACCEL_CI_GITHUB_TOKEN`.
    """

    repository: FullName
    api: Endpoint = "https://api.github.com"
    app: GitHubApp | None = None


Label = Annotated[str, Field(pattern=r"\A[^,\x00-\x1f]{1,100}\z")]


class PullRequestRefs(Section):
    """Pull requests as refs of git, for a host that is not GitHub: `*` in the `pattern` stands for the number.

    Refs do not tell who has pushed, so all of them are built: `trust_all` is there to be said.
    """

    pattern: Annotated[GitRef, Field(pattern=r"\Arefs/[A-Za-z0-9._/-]+/\*(/[A-Za-z0-9._-]+)*\z")] = "refs/pull/*/head"
    trust_all: Literal[True]

    def ref_of(self, number: int) -> str:
        """The ref of the pull request with that number."""
        return self.pattern.replace("*", str(number))

    def number_of(self, ref: str) -> int | None:
        """The number of the pull request that a ref is; None for another ref."""
        front, _, back = self.pattern.partition("*")
        number = ref.removeprefix(front).removesuffix(back)
        is_one = ref == f"{front}{number}{back}" and re.fullmatch(r"[1-9]\d{0,8}", number, re.ASCII) is not None
        return int(number) if is_one else None


def strangers_mistakes(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """Find what keeps strangers' code from running without a maintainer's label: nothing isolates it, or there is none.

    Their builds and tests run as another user, or in containers alone.
    """
    pulls = as_mapping(document.get("pull_requests"))
    if pulls.get("strangers", "nothing") != "deviceless":
        return
    where = ("pull_requests", "strangers")
    if pulls.get("refs") is not None:
        yield where, "is for GitHub: refs of git tell nobody's name, and all of them are built"
    suites, pool = as_mapping(document.get("suites")), as_mapping(document.get("pool"))
    chosen = as_sequence(as_mapping(as_mapping(document.get("jobs")).get("pr")).get("suites"))
    if not any(as_mapping(suites.get(name)).get("stage") == "deviceless" for name in chosen if isinstance(name, str)):
        yield where, "needs a suite with 'stage: deviceless' among jobs.pr.suites"
    if pool.get("kind", "local") == "local":
        own, others = (str(user or 0).partition(":")[0] for user in (pulls.get("strangers_user"), pool.get("user")))
        if own.strip("0") == "":
            yield where, "needs 'strangers_user', a user for their code, or a pool of containers (docs/security.md)"
        elif own == others:
            yield ("pull_requests", "strangers_user"), "must be another user than pool.user, who runs trusted code"
        return
    for index, entry in enumerate(as_sequence(document.get("variants"))):
        variant = as_mapping(entry)
        name = variant.get("name", index)
        if not as_mapping(variant.get("wheels") or document.get("wheels")).get("builder"):
            yield where, f"needs 'wheels.builder', a container for builds of {name}: they would run on this machine"
        image = as_mapping(variant.get("image") or document.get("image"))
        if not image and not (variant.get("prebuilt_image") or document.get("prebuilt_image")):
            yield where, f"needs the section 'image' for {name}: its environment would be made on this machine"
        if as_mapping(image.get("builder")).get("kind") == "buildah":
            yield where, "needs images by a Docker engine: Buildah does not isolate what it runs from this machine"
        if pool.get("kind") == "kubernetes" and image and not image.get("registry_of_pulls"):
            yield where, f"needs 'image.registry_of_pulls' for {name}: pods pull their images from a repository of their own"


class PullRequests(Section):
    """The backend's pull requests that are built, and their answers.

    Those from forks are built once a maintainer has set one of `labels` after the newest commit; those of `trusted_authors`
    from their own forks, and of branches of the repository itself, are built at once. `drafts` are passed over by default.
    Unless `blocking` is set, a check is neutral where it would fail.
    With `strangers: deviceless`, those that wait for a label run their deviceless suites before it: in containers, or
    in the pool `local` as `strangers_user` (`uid` or `uid:gid`), whom nothing else runs as.
    With `refs`, pull requests are found by git and get no answer. Without `enabled`, the sensors are stopped at first.
    """

    enabled: bool = False
    check_every_seconds: Annotated[int, Field(ge=15)] = 60
    labels: tuple[Label, ...] = ()
    trusted_authors: tuple[Annotated[str, Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,38}\z")], ...] = ()
    drafts: bool = False
    strangers: Literal["nothing", "deviceless"] = "nothing"
    strangers_user: ContainerUser | None = None
    blocking: bool = False
    comment: bool = True
    refs: PullRequestRefs | None = None
