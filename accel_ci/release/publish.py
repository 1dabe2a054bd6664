"""Publish a build that passes the gate: to the nightly channel, to the test index, or as a release.

Each step may be done again: what is there already is left as it is. The record of a release is written last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from accel_ci.config.release_settings import Index, Release, ReleaseImages
from accel_ci.errors import AccelCiError, BuildError
from accel_ci.images.registry import Destination
from accel_ci.model import Artifact, Build, Revision, RuntimeImage, Wheel
from accel_ci.pipelines import REVISION, RUNTIME_IMAGE, WHEEL
from accel_ci.progress import Step
from accel_ci.release.attestations import Attested, attest, attestations_of, identity_token, shown_by
from accel_ci.release.channel import ChannelResult, open_channel
from accel_ci.release.facts import decide
from accel_ci.release.gate import Decision, unmet_in_words
from accel_ci.release.images import Attachment, attach, set_tag, sign
from accel_ci.release.index import upload
from accel_ci.release.provenance import MEDIA_TYPE, provenance
from accel_ci.release.tags import ReleaseTag, index_for, tag_of
from accel_ci.release.verify import verify
from accel_ci.workspace import Workspace

RELEASE = "release"
"""The manifest of a build that went out."""

_SBOM_TYPE = "application/vnd.cyclonedx+json"


class RefusedError(AccelCiError):
    """The gate refuses a build; the message names each criterion that it does not meet."""


@dataclass(frozen=True)
class ImageTag:
    """A tag of the release repository: it was `set` or `moved` now, was `there`, or is `kept` at another image."""

    tag: str
    digest: str
    state: str


@dataclass(frozen=True)
class Published:
    """The end of a publication.

    `index` is the address of the index, None without one, and `uploaded` the names of the files that it did not have before.
    `verified` says in words what was installed from there. `provenance` is the in-toto statement on the build. `attested`
    are the wheels with attestations, and `attestations` says in words what became of these.
    """

    build: Build
    at: datetime
    decision: Decision
    kind: str
    tag: str | None = None
    index: str | None = None
    uploaded: tuple[str, ...] = ()
    verified: str | None = None
    images: tuple[ImageTag, ...] = ()
    attached: tuple[str, ...] = ()
    provenance: Artifact | None = None
    attested: tuple[Attested, ...] = ()
    attestations: str | None = None


@dataclass(frozen=True)
class _Made:
    """The parts of a build that are published."""

    build: Build
    revision: Revision
    wheel: Wheel
    image: RuntimeImage | None
    files: tuple[Path, ...]


def publish_nightly(
    workspace: Workspace, build: Build, *, in_its_run: bool = False
) -> tuple[Decision, ChannelResult, tuple[ImageTag, ...]] | Decision:
    """Add a build to the nightly channel, and tag its image, or return the decision that refuses it.

    The channel's pointer and the tag `nightly` move last. Raises `AccelCiError`.
    """
    settings, now = _section(workspace, build), datetime.now(timezone.utc)
    if settings.channel is None:
        raise AccelCiError("the configuration has no release.channel; see docs/release.md")
    decision = decide(workspace, build, in_its_run=in_its_run)
    if not decision.goes_out:
        return decision
    made = _made(workspace, build)
    channel = open_channel(workspace, build.variant)
    tags: list[ImageTag] = []
    day = f"{made.revision.created_at:%Y%m%d}"
    if settings.images is not None and made.revision.trigger == "nightly":
        tags += _tag_image(workspace, settings.images, made, [f"nightly-{day}"])
    result = channel.publish(build, made.revision.created_at, made.files, settings.channel, now)
    if settings.images is not None and result.is_latest(build):
        _copied(settings.images, made)
        with channel.while_latest(build) as is_latest:  # else a newer build that is published meanwhile would lose its tag
            tags += _tag_image(workspace, settings.images, made, ["nightly"], moves=True) if is_latest else []
    return decision, result, tuple(tags)


def publish_build(
    workspace: Workspace,
    build: Build,
    step: Step,
    tag: str | None = None,
    *,
    dry_run: bool = False,
    in_its_run: bool = False,
) -> Published:
    """Publish a build to the index that it belongs to, and the image of a release under its version.

    A build of a release tag, the revision's own or `tag`, goes to `release.index`, any other to `release.test_index`. The
    tag of a component of the stack releases the image alone. With `dry_run`, nothing is uploaded. Raises `RefusedError` if
    the gate refuses it, else `AccelCiError`.
    """
    settings = _section(workspace, build)
    revision = _revision(workspace, build)
    release_tag = tag_of(workspace.project, revision, tag)
    if tag is not None and release_tag is None:
        wanted = "a semantic version, such as v1.2.3, or that of a component, such as runtime=v1.2.3"
        raise AccelCiError(f"{tag!r} is no release tag: it must be {wanted}")
    index = index_for(settings, release_tag)
    images = settings.images if release_tag is not None else None
    if index is None and images is None:
        missing = "release.index or release.images" if release_tag is not None else "release.test_index"
        raise AccelCiError(f"the configuration has no {missing}, so {build.name} has nowhere to go; see docs/release.md")
    decision = decide(workspace, build, release_tag, index=index, in_its_run=in_its_run)
    if not decision.goes_out:
        raise RefusedError(f"{build.name} is not released: {unmet_in_words(decision.refused_by)}")
    made = _made(workspace, build)
    if images is not None and release_tag is not None:
        _refuse_other_image(workspace, images, made, release_tag)
    uploaded: tuple[str, ...] = ()
    attested: tuple[Attested, ...] = ()
    verified = attestations = None
    if index is not None and index.attestations:
        uploaded, attested, attestations = _upload_attested(workspace, settings, index, made, dry_run=dry_run)
    elif index is not None:
        uploaded = upload(index, made.files, dry_run=dry_run)
    if index is not None:
        verified = _verified(workspace, settings, made, index, step) if not dry_run else None
    kind = "dry run" if dry_run else "release" if release_tag is not None else "test"
    statement = workspace.artifacts.put_bytes(_provenance(workspace, made), f"{build.name}.intoto.json")
    tags: tuple[ImageTag, ...] = ()
    attached: tuple[str, ...] = ()
    if images is not None and release_tag is not None and not dry_run:
        tags, attached = _release_image(workspace, images, made, release_tag)
    address = index.simple if index is not None else None
    name = release_tag.shown if release_tag is not None else None
    published = Published(
        build, datetime.now(timezone.utc), decision, kind, name, address, uploaded, verified, tags, attached, statement,
        attested, attestations,
    )  # fmt: skip
    if kind == "release":
        workspace.manifests.write(workspace.manifests.path(RELEASE, build.revision, build.variant), published)
    return published


def _upload_attested(
    workspace: Workspace, settings: Release, index: Index, made: _Made, *, dry_run: bool
) -> tuple[tuple[str, ...], tuple[Attested, ...], str]:
    """Upload wheels with their attestations; return the names that were new, the attestations, and words on them.

    A wheel that the index has already gets none: its attestation can only come with it. Nothing is signed before the index
    has been asked, since the log of signatures is public and keeps them for ever.
    """
    wheels = made.wheel.wheels
    missing = upload(index, made.files, dry_run=True)
    if dry_run:
        kept = {each.wheel.name for each in attestations_of(workspace, made.build, wheels)}
        if new := [name for name in missing if name not in kept]:
            identity_token(settings.sigstore)
        return missing, (), f"{len(new)} attestations would be made, {len(kept)} are kept"
    attested = attest(workspace, made.build, wheels, missing, index)
    files = {each.wheel.name: workspace.artifacts.checked_path(each.attestation) for each in attested}
    new_ones = [path for path in made.files if path.name in missing]
    uploaded = upload(index, new_ones, {name: files[name] for name in missing}) if missing else ()
    shown = shown_by(workspace, attested, index)
    identities = ", ".join(sorted({each.identity for each in attested})) or "nobody"
    words = f"{len(attested)} of {len(wheels)} wheels have attestations, by {identities}; the index shows {len(shown)}"
    return uploaded, attested, words


def _release_image(
    workspace: Workspace, images: ReleaseImages, made: _Made, tag: ReleaseTag
) -> tuple[tuple[ImageTag, ...], tuple[str, ...]]:
    """Tag the image of a release by its version: once, and last, when all that belongs to it is attached."""
    place, digest = _copied(images, made)
    documents = [Attachment(MEDIA_TYPE, _provenance(workspace, made))]
    if made.image is not None and made.image.sbom is not None:
        documents.append(Attachment(_SBOM_TYPE, workspace.artifacts.checked_path(made.image.sbom).read_bytes()))
    attached = [attach(place, digest, each) for each in documents]
    if images.key is not None:
        if not (key := os.environ.get(images.key)):
            raise AccelCiError(f"${images.key} is not set; set it to the file of the private key, or remove images.key")
        attached.append(sign(place, digest, Path(key)))
    tags = tuple(_tag_image(workspace, images, made, [tag.of_image]))
    if kept := [each.tag for each in tags if each.state == "kept"]:
        raise RefusedError(f"{images.repository}:{kept[0]} was set to another image meanwhile: a version never moves")
    return tags, tuple(attached)


def _refuse_other_image(workspace: Workspace, images: ReleaseImages, made: _Made, tag: ReleaseTag) -> None:
    """Raise `RefusedError` before anything is published if the version names another image already."""
    name, digest = _tag_name(workspace, made.build, tag.of_image), _reference(made).partition("@")[2]
    there = Destination(images.repository).digest_of(name)
    if there not in (None, digest):
        raise RefusedError(
            f"{images.repository}:{name} is {there}, and the image of {made.build.name} {digest}: a version never moves. "
            "Give the release another version"
        )


def _tag_image(
    workspace: Workspace, images: ReleaseImages, made: _Made, names: list[str], *, moves: bool = False
) -> list[ImageTag]:
    place, digest = _copied(images, made)
    tags = [_tag_name(workspace, made.build, name) for name in names]
    return [ImageTag(tag, digest, set_tag(place, digest, tag, moves=moves)) for tag in tags]


def _tag_name(workspace: Workspace, build: Build, name: str) -> str:
    """Return the tag of a build's image: those of other variants than the first one released have its name."""
    first = (_section(workspace, build).variants or [each.name for each in workspace.project.settings.variants])[0]
    return name if build.variant == first else f"{name}-{build.variant}"


def _copied(images: ReleaseImages, made: _Made) -> tuple[Destination, str]:
    """Copy the image of a build to the release repository, where it has its digest."""
    place = Destination(images.repository)
    return place, place.copy(_reference(made))


def _reference(made: _Made) -> str:
    container = made.image.container("runtime") if made.image is not None else None
    if container is None or "@sha256:" not in container.reference:
        raise BuildError(f"{made.build.name} has no image in a registry; set image.registry, or remove release.images")
    return container.reference


def _verified(workspace: Workspace, settings: Release, made: _Made, index: Index, step: Step) -> str | None:
    if not settings.verify:
        return None
    if made.image is None:
        raise BuildError(f"{made.build.name} has no runtime image, so nobody knows what to install beside its wheels")
    return verify(workspace, made.build, made.revision, made.wheel, made.image, index, step)


def _provenance(workspace: Workspace, made: _Made) -> bytes:
    known = workspace.project.settings.addresses
    builder = known.ui if known is not None else f"urn:accel-ci:{workspace.project.settings.identity}"
    ended = [run.ended_at for run in workspace.manifests.last_runs(made.build).values() if run.ended_at is not None]
    return provenance(made.build, made.revision, made.wheel, made.image, builder, max(ended, default=None))


def _made(workspace: Workspace, build: Build) -> _Made:
    wheel = workspace.manifests.find(WHEEL, build, Wheel)
    if wheel is None:
        raise BuildError(f"{build.name} has no wheel; run the build again")
    image = workspace.manifests.find(RUNTIME_IMAGE, build, RuntimeImage)
    files = tuple(workspace.artifacts.checked_path(each) for each in wheel.wheels)
    return _Made(build, _revision(workspace, build), wheel, image, files)


def _revision(workspace: Workspace, build: Build) -> Revision:
    return workspace.manifests.read(workspace.manifests.path(REVISION, build.revision), Revision)


def _section(workspace: Workspace, build: Build) -> Release:
    settings = workspace.project.settings
    if settings.release is None:
        raise AccelCiError("the configuration has no section 'release', so nothing is released; see docs/release.md")
    if not settings.releases(build.variant):
        raise AccelCiError(f"{build.name}: builds of {build.variant} are not released; see release.variants")
    return settings.release
