"""The release of a build: the nightly channel, the indexes and the registry. Each is refused where the gate says no."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from accel_ci.defs.metadata import build_link, check_result, link, redacted, table
from accel_ci.defs.partitions import build_of, builds
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, CheckResult, Revision
from accel_ci.pipelines import LEDGER, REVISION
from accel_ci.progress import Progress
from accel_ci.redaction import redact
from accel_ci.release.facts import decide
from accel_ci.release.gate import Criterion, Decision, unmet_in_words
from accel_ci.release.publish import Published, publish_build, publish_nightly
from accel_ci.release.tags import index_for, tag_of
from accel_ci.workspace import Workspace

CHANNEL, RELEASE = "nightly_channel", "release"
_GATE = "gate"


def release_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Make the assets, partitioned as the builds are; none where nothing is released."""
    settings = workspace.project.settings
    section = settings.release
    if section is None:
        return []
    wanted = [(nightly_channel, section.channel is not None)]
    wanted += [(release, any(each is not None for each in (section.index, section.test_index, section.images)))]
    return [
        dg.asset(
            group_name="release",
            owners=list(settings.backend.owners),
            partitions_def=builds(settings),
            deps=[LEDGER],
            kinds={"python"},
            output_required=False,  # of a build that is refused, or goes elsewhere, there is none
            check_specs=[
                dg.AssetCheckSpec(_GATE, asset=work.__name__, description="All criteria of a release are met or overridden.")
            ],
        )(work)
        for work, is_wanted in wanted
        if is_wanted
    ]


def nightly_channel(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> Iterator[Any]:
    """The static index of the builds that passed, with a pointer to the newest one."""
    build, section = build_of(context), workspace.project.settings.release
    trigger = _revision(workspace, build).trigger
    if section is None or section.channel is None or trigger not in section.channel.triggers or not _goes(workspace, build):
        yield _not_for(build, f"builds of the trigger {trigger} and variant {build.variant} do not go there")
        return
    with progress.step(CHANNEL) as step:
        try:
            done = publish_nightly(workspace, build, in_its_run=True)
        except AccelCiError as error:
            raise dg.Failure(redact(str(error)), allow_retries=False) from None
        if isinstance(done, Decision):
            step.note(f"refused by {', '.join(each.name for each in done.refused_by)}")
            yield _gate(build, done)
            return
        decision, result, tags = done
        step.note(f"{len(result.new)} new, {len(result.removed)} removed, latest {result.latest.build}")
    yield _gate(build, decision)
    files = [[each.project, each.version, each.path, each.sha256] for each in result.latest.files]
    metadata = {
        "page": build_link(workspace, build),
        "latest": result.latest.build,
        "is_latest": result.is_latest(build),
        "new": table(["file"], [[name] for name in result.new]),
        "removed": table(["file"], [[name] for name in result.removed]),
        "latest_files": table(["project", "version", "path", "sha256"], files),
        "images": table(["tag", "digest", "state"], [[each.tag, each.digest, each.state] for each in tags]),
        **_override(decision),
    }
    yield dg.MaterializeResult(metadata=redacted(metadata))


def release(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace], progress: dg.ResourceParam[Progress]
) -> Iterator[Any]:
    """The wheels of the build in an index, and the image of a release in the registry, if the gate lets them out."""
    build, section = build_of(context), workspace.project.settings.release
    revision = _revision(workspace, build)
    try:
        tag = tag_of(workspace.project, revision)
        is_release = tag is not None and section is not None and (index_for(section, tag) or section.images)
        is_test = tag is None and section is not None and section.test_index and revision.trigger in section.test_triggers
        if not _goes(workspace, build) or not (is_release or is_test):
            yield _not_for(build, f"it has no release tag, and builds of the trigger {revision.trigger} are not tried out")
            return
        index = index_for(section, tag) if section is not None else None
        with progress.step(RELEASE) as step:
            decision = decide(workspace, build, tag, index=index, in_its_run=True)
            yield _gate(build, decision)
            if not decision.goes_out:
                step.note(f"refused by {', '.join(each.name for each in decision.refused_by)}")
                return
            done = publish_build(workspace, build, step, in_its_run=True)
            step.note(f"{done.kind}: {', '.join(done.uploaded) or 'nothing'} uploaded")
    except AccelCiError as error:
        raise dg.Failure(redact(str(error)), allow_retries=False) from None
    metadata = {
        "page": build_link(workspace, build),
        "kind": done.kind,
        "tag": done.tag,
        "index": done.index,
        "uploaded": table(["file"], [[name] for name in done.uploaded]),
        "attestations": done.attestations,
        "verified": done.verified,
        "images": table(["tag", "digest", "state"], [[each.tag, each.digest, each.state] for each in done.images]),
        **({"attested": _attested(done)} if done.attested else {}),
        **({"provenance": link(workspace, done.provenance)} if done.provenance is not None else {}),
        **_override(decision),
    }
    yield dg.MaterializeResult(metadata=redacted({name: value for name, value in metadata.items() if value is not None}))


def _attested(done: Published) -> dg.MetadataValue:
    rows = [[each.wheel.name, each.identity, each.issuer, each.log_index] for each in done.attested]
    return table(["file", "identity", "issuer", "entry of the log"], rows)


def _gate(build: Build, decision: Decision) -> dg.AssetCheckResult:
    """Make the check of the gate, with all criteria; a refusal is a warning, since the build itself is not to blame."""
    refused = decision.refused_by
    summary = unmet_in_words(refused) or f"{len(decision.criteria)} criteria are met or overridden"
    found = check_result(CheckResult(_GATE, not refused, summary), build, warn=True)
    rows = [[each.name, each.value, each.wanted, _state(each, decision)] for each in decision.criteria]
    return found._replace(metadata={**found.metadata, "criteria": table(["criterion", "value", "wanted", "state"], rows)})


def _state(criterion: Criterion, decision: Decision) -> str:
    if criterion.met:
        return "met"
    return "not met" if criterion in decision.refused_by else "overridden"


def _not_for(build: Build, reason: str) -> dg.AssetCheckResult:
    return check_result(CheckResult(_GATE, True, f"not asked: {reason}"), build)


def _override(decision: Decision) -> dict[str, Any]:
    word = decision.override
    return {"override": f"{word.person}: {word.reason} ({', '.join(word.criteria)})"} if word is not None else {}


def _goes(workspace: Workspace, build: Build) -> bool:
    return workspace.project.settings.releases(build.variant)


def _revision(workspace: Workspace, build: Build) -> Revision:
    return workspace.manifests.read(workspace.manifests.path(REVISION, build.revision), Revision)
