"""Attestations (PEP 740) and trusted publishing: with real signatures, certificates and logs, on loopback."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
from sigstore.verify.policy import Identity

from accel_ci.config.release_settings import Index
from accel_ci.errors import AccelCiError
from accel_ci.progress import LineProgress
from accel_ci.release.attestations import ATTESTATIONS, Attestations, Attested, shown_by
from accel_ci.release.publish import RELEASE, Published, publish_build
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.certificate import make_certificate
from accel_ci_tests.fixtures.github_actions import GithubActions, github_actions
from accel_ci_tests.fixtures.oidc_issuer import OidcIssuer, oidc_issuer
from accel_ci_tests.fixtures.package_index import AUDIENCE, TOKEN, PackageIndex, package_index
from accel_ci_tests.fixtures.project import write_project
from accel_ci_tests.fixtures.released_build import BUILD, write_released_build
from accel_ci_tests.fixtures.sigstore_server import SigstoreServer, sigstore_server

NAMES = ["toy_runtime-1.0.0-py3-none-any.whl", "toy_backend-1.0.0-py3-none-any.whl"]


@dataclass
class World:
    """Everything outside the project: who knows the job, who signs, where wheels go."""

    folder: Path
    issuer: OidcIssuer
    sigstore: SigstoreServer
    index: PackageIndex
    job: GithubActions

    def section(self, **index: Any) -> dict[str, Any]:
        """Return the section `release`: without a token, so that the index must trust the job."""
        trust = self.sigstore.write_trust(self.folder / "trust.json")
        section = {"upload": self.index.upload, "simple": self.index.simple, "attestations": True, "local_versions": False}
        return {"index": {**section, **index}, "sigstore": {"trust": str(trust)}, "verify": False}

    def project(self, **index: Any) -> Workspace:
        """Write a project with a build to publish."""
        return write_released_build(self.folder / "project", self.section(**index), version="1.0.0")


@contextmanager
def made_world(folder: Path) -> Iterator[World]:
    certificate = make_certificate(folder)
    with ExitStack() as stack:
        issuer = stack.enter_context(oidc_issuer())
        sigstore = stack.enter_context(sigstore_server(issuer))
        index = stack.enter_context(package_index(folder / "index", issuer, certificate))
        job = stack.enter_context(github_actions(issuer))
        index.verifies = sigstore.verify
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in {**certificate.environment, **job.environment}.items():
            variables.setenv(name, value)
        yield World(folder, issuer, sigstore, index, job)


def publish(workspace: Workspace, *, dry_run: bool = False) -> Published:
    with LineProgress().step(RELEASE) as step:
        return publish_build(workspace, BUILD, step, dry_run=dry_run)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made_world(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def gone_out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Workspace, Published]]:
    """A build that went out."""
    with made_world(tmp_path_factory.mktemp("world")) as world:
        workspace = world.project()
        yield world, workspace, publish(workspace)


GoneOut = tuple[World, Workspace, Published]


def published(workspace: Workspace) -> Published:
    return workspace.manifests.read(workspace.manifests.path(RELEASE, BUILD.revision, BUILD.variant), Published)


def text_below(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


def test_wheels_go_out_attested_without_a_configured_token(gone_out: GoneOut, capfd: pytest.CaptureFixture[str]) -> None:
    world, workspace, done = gone_out
    assert (list(done.uploaded), world.index.names) == (NAMES, sorted(NAMES))
    words = f"2 of 2 wheels have attestations, by {world.job.identity}; the index shows 2"
    assert done.attestations == published(workspace).attestations == words
    for attested in done.attested:
        kept = json.loads(workspace.artifacts.checked_path(attested.attestation).read_bytes())
        assert world.index.attestations[attested.wheel.name] == [kept]
        assert (attested.identity, attested.issuer) == (world.job.identity, world.issuer.url)
    assert [each.log_index for each in done.attested] == [0, 1]
    assert len(world.sigstore.certificates) == 1
    again = publish(workspace)
    assert (again.uploaded, again.attested, again.attestations) == ((), done.attested, words)
    assert world.index.requests["POST /"] == 2
    assert len(world.sigstore.entries) == 2
    seen = text_below(world.folder / "project") + "".join(capfd.readouterr()) + repr(done)
    assert len(world.index.minted) == 3
    assert world.index.burnt == set(world.index.minted)
    assert not [token for token in [*world.index.minted, *world.job.tokens] if token in seen]


def test_a_dry_run_tells_what_would_be_done_and_leaves_no_entry_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = world.project()
    done = publish(workspace, dry_run=True)
    assert (list(done.uploaded), done.attestations) == (NAMES, "2 attestations would be made, 0 are kept")
    assert (world.index.names, world.sigstore.entries, world.sigstore.requests) == ([], [], {})
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_URL")
    with pytest.raises(AccelCiError, match="trusted publishing"):
        publish(workspace, dry_run=True)


def test_what_was_signed_before_a_kill_goes_out_with_that(world: World) -> None:
    workspace = world.project()
    kill_at(world, workspace, "POST /api/v1/log/entries")  # while it is signed: nobody knows of that signature
    assert (world.index.names, kept(workspace)) == ([], ())
    kill_at(world, workspace, "POST /")  # before the first upload
    assert world.index.names == []
    before = kept(workspace)
    assert [each.wheel.name for each in before] == NAMES
    entries = len(world.sigstore.entries)
    done = publish(workspace)
    assert (list(done.uploaded), done.attested) == (NAMES, before)
    assert len(world.sigstore.entries) == entries, "nothing is signed again"
    assert {name: len(each) for name, each in world.index.attestations.items()} == dict.fromkeys(NAMES, 1)


def test_a_kill_between_two_uploads_leaves_one_to_be_done(world: World) -> None:
    workspace = world.project()
    kill_at(world, workspace, "POST /", 2)
    [there] = world.index.names  # uv has an order of its own
    at = (world.index.folder / there).stat().st_mtime_ns
    done = publish(workspace)
    assert list(done.uploaded) == [name for name in NAMES if name != there]
    assert done.attestations == f"2 of 2 wheels have attestations, by {world.job.identity}; the index shows 2"
    assert (world.index.folder / there).stat().st_mtime_ns == at


def test_only_this_file_and_this_publisher_are_attested(gone_out: GoneOut) -> None:
    world, _, _ = gone_out
    [name, _], accept = NAMES, world.sigstore.verified
    content, [attestation] = (world.index.folder / name).read_bytes(), world.index.attestations[name]
    publisher = Identity(identity=world.job.identity, issuer=world.issuer.url)
    assert accept(name, content, attestation, publisher) == "https://docs.pypi.org/attestations/publish/v1"
    for changed, words in (
        ((name, content + b"more", attestation, publisher), "digest"),
        ((NAMES[1], content, attestation, publisher), "name"),
        ((name, content, attestation, Identity(identity="https://github.com/b/fork", issuer=world.issuer.url)), "fork"),
        ((name, content, attestation, Identity(identity=world.job.identity, issuer="https://issuer.example")), "issuer"),
    ):
        with pytest.raises(ValueError, match=words):
            accept(*changed)
    with sigstore_server(world.issuer) as other, pytest.raises(ValueError, match="certificate chain"):
        other.verified(name, content, attestation, publisher)
    forged = json.loads(json.dumps(attestation))
    forged["verification_material"]["transparency_entries"][0]["integratedTime"] = "1700000000"
    with pytest.raises(ValueError, match=r"certificate|promise"):
        accept(name, content, forged, publisher)


def test_an_index_that_shows_attestations_of_others_is_found_out(gone_out: GoneOut, monkeypatch: pytest.MonkeyPatch) -> None:
    world, workspace, done = gone_out
    [name, other], shown = NAMES, world.index.attestations
    settings = Index.model_validate(world.section()["index"])
    [mine], content = shown[name], (world.index.folder / name).read_bytes()
    claims = {**world.job.claims, "job_workflow_ref": "a/backend/.github/workflows/other.yml@refs/heads/main"}
    by_another = world.sigstore.attest(name, content, world.issuer.token(**{**claims, "aud": "sigstore"}))
    for attestations, words in ((shown[other], "is of another file"), ([by_another], "other.yml")):
        monkeypatch.setitem(shown, name, attestations)
        with pytest.raises(AccelCiError, match=rf"shows no attestation of {name} by its publisher: .*{words}"):
            shown_by(workspace, done.attested, settings)
    monkeypatch.setitem(shown, name, [by_another, mine])
    assert list(shown_by(workspace, done.attested, settings)) == NAMES
    monkeypatch.setattr(world.index, "shows", False)
    assert shown_by(workspace, done.attested, settings) == ()


def test_a_file_that_went_out_before_cannot_be_attested(world: World) -> None:
    publish(world.project(attestations=False))
    done = publish(Workspace(write_project(world.folder / "project", release=world.section())))
    assert (done.uploaded, done.attestations) == ((), "0 of 2 wheels have attestations, by nobody; the index shows 0")
    assert world.sigstore.entries == []


def test_without_an_identity_or_the_services_nothing_goes_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = world.project(token="TOY_INDEX_TOKEN")
    monkeypatch.setenv("TOY_INDEX_TOKEN", TOKEN)
    world.sigstore.refuses = 503
    with pytest.raises(AccelCiError, match="attestations cannot be made: FulcioClientError: 503"):
        publish(workspace)
    world.sigstore.refuses = None
    world.issuer.rotate()
    world.sigstore.issuer = OidcIssuer()
    with pytest.raises(AccelCiError, match="attestations cannot be made: FulcioClientError: 401"):
        publish(workspace)
    world.sigstore.issuer.close()
    world.sigstore.issuer = world.issuer
    world.job.status = 403
    with pytest.raises(AccelCiError, match=r"attestations cannot be made: .*GitHub: OIDC token request failed \(code=403"):
        publish(workspace)
    for name in world.job.environment:
        monkeypatch.delenv(name)
    with pytest.raises(AccelCiError, match="there is no identity to sign attestations with"):
        publish(workspace)
    assert world.index.names == []


def test_services_that_never_answer_are_given_up(world: World) -> None:
    workspace = world.project(timeout_seconds=15)
    world.sigstore.hangs.set()
    with pytest.raises(AccelCiError, match=r"Sigstore, or the index, does not answer: .* did not end within 15 s"):
        publish(workspace)
    assert world.index.names == []


def test_the_identity_can_be_a_token_in_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in world.job.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOY_INDEX_TOKEN", TOKEN)
    section = world.section(token="TOY_INDEX_TOKEN")
    section["sigstore"]["token_file"] = "TOY_IDENTITY"
    workspace = write_released_build(world.folder / "project", section, version="1.0.0")
    with pytest.raises(AccelCiError, match=r"\$TOY_IDENTITY is not set"):
        publish(workspace)
    file = world.folder / "identity"
    monkeypatch.setenv("TOY_IDENTITY", str(file))
    with pytest.raises(AccelCiError, match="cannot be read: No such file"):
        publish(workspace)
    file.write_text("none")
    with pytest.raises(AccelCiError, match="has no OIDC token"):
        publish(workspace)
    token = world.issuer.token(**{**world.job.claims, "aud": "sigstore", "job_workflow_ref": None, "sub": "https://ci/42"})
    file.write_text(f"{token}\n")
    done = publish(workspace)
    assert {each.identity for each in done.attested} == {"https://ci/42"}
    assert token not in text_below(world.folder / "project")


def test_a_job_of_gitlab_publishes_by_its_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in world.job.environment:
        monkeypatch.delenv(name)
    claims = {**world.job.claims, "job_workflow_ref": None, "sub": "project_path:a/backend:ref_type:tag:ref:v1.0.0"}
    tokens = {aud: world.issuer.token(**{**claims, "aud": aud}) for aud in ("sigstore", AUDIENCE)}
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", tokens["sigstore"])
    monkeypatch.setenv("TOY_INDEX_ID_TOKEN", tokens[AUDIENCE])
    done = publish(world.project())
    assert list(done.uploaded) == NAMES
    assert {each.identity for each in done.attested} == {claims["sub"]}


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"aud": "another-index"}, "Audience"),
        ({"repository": "a/fork"}, "no corresponding publisher"),
        ({"exp": 1}, "expired"),
        ({"iss": "https://issuer.example"}, "[Ii]nvalid issuer"),
    ],
)
def test_who_is_not_the_publisher_gets_no_token(world: World, claims: dict[str, Any], words: str) -> None:
    world.job.claims |= claims
    with pytest.raises(
        AccelCiError, match=rf"(?s){words}.*See that the index trusts this workflow as a publisher"
    ) as refusal:
        publish(world.project(attestations=False))
    assert not [token for token in world.job.tokens if token in str(refusal.value)]
    assert (world.index.names, world.index.minted) == ([], [])


def test_a_token_that_nobody_known_has_signed_is_refused(world: World) -> None:
    world.issuer.rotate()
    forger = OidcIssuer()
    world.index.issuer, forger.url = forger, world.issuer.url
    with pytest.raises(AccelCiError, match="Signature verification failed"):
        publish(world.project(attestations=False))
    forger.close()
    assert world.index.minted == []


def test_a_minted_token_is_not_in_the_error_of_an_upload_that_fails(world: World) -> None:
    workspace = world.project(attestations=False)
    world.index.takes = False
    with pytest.raises(AccelCiError, match="cannot be uploaded") as refusal:
        publish(workspace)
    [token] = world.index.minted
    assert token not in str(refusal.value)


def kept(workspace: Workspace) -> tuple[Attested, ...]:
    found = workspace.manifests.find(ATTESTATIONS, BUILD, Attestations)
    return found.of if found is not None else ()


def kill_at(world: World, workspace: Workspace, request: str, number: int = 1) -> None:
    """Publish the build in a process that is killed at a request to the services or the index."""
    begin, left, seen = get_context("fork").Event(), list[psutil.Process](), list[str]()

    def publish_once_seen() -> None:
        begin.wait(30)
        publish(workspace)

    process = get_context("fork").Process(target=publish_once_seen)
    process.start()

    def drops(asked: str) -> bool:
        seen.append(asked)
        if seen.count(request) == number and asked == request:
            left.extend(psutil.Process(process.pid).children(recursive=True))
            process.kill()
        return seen.count(request) >= number

    before = world.sigstore.drops, world.index.drops
    world.sigstore.drops = world.index.drops = drops
    begin.set()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive
    world.sigstore.drops, world.index.drops = before
