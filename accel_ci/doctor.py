"""Check what is installed and reachable on this machine, what missing pieces would enable, and how to get them."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from accel_ci.config.extras import require_configured_extras
from accel_ci.config.loading import load_project
from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import AccelCiError
from accel_ci.machine import check_cards, check_clock, check_disk
from accel_ci.model import RuntimeImage
from accel_ci.pipelines import PIPELINES, RUNTIME_IMAGE
from accel_ci.preflight import ask, check_stores, needs_of
from accel_ci.workspace import Workspace


@dataclass(frozen=True)
class Piece:
    """One thing that the product can use; nothing works without a `needed` one."""

    name: str
    usable: bool
    state: str
    needed: bool
    enables: str
    how: str


def examine(config: Path | None) -> Iterator[Piece]:
    """Check the pieces one by one; each takes at most a few seconds."""
    for name, needed, enables, how, check in (
        ("Python", True, "everything", "install Python 3.10 or newer",
         lambda _: (sys.version_info >= (3, 10), platform.python_version())),
        ("git", True, "revisions: SHAs and sources", "install git", lambda _: _program("git")),
        ("uv", True, "wheels and runtime images", "pip install uv", _uv),
        ("configuration", True, "everything: it defines what to build and test", "run accel-ci init",
         lambda config: (True, str(load_project(config).config_path))),
        ("packages", False, "other sources of wheels than the default index",
         "set PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS for a mirror or an offline machine", _packages),
        ("backend", True, "revisions: the sources that are built", "correct backend.repository and backend.ref", _backend),
        ("upstream", False, "the `main` sensor and upstream SHAs", "check the network and upstream.repository", _upstream),
        ("cards", False, "the tests", "run a nightly, then this again; look at the probe's reason", _cards),
        ("free space", False, "builds, images and results", "run accel-ci prune, or set ACCEL_CI_HOME", _disk),
        ("clock", False, "buckets, certificates, the order of builds", "set the clock, by NTP for instance", _clock),
        ("Docker", False, "Docker images, builders, the docker pool", "install Docker, or set DOCKER_HOST", _docker),
        ("Kubernetes", False, "pools of many cards", "set KUBECONFIG", _kubernetes),
        ("Chromium", False, "the browser tests of the HUD", "install chromium, or set ACCEL_CI_CHROMIUM", _chromium),
    ):  # fmt: skip
        try:
            usable, state = check(config)
        except (AccelCiError, OSError) as error:
            usable, state = False, str(error)
        yield Piece(name, usable, state, needed, enables, how)
    yield from _needs(config)


def examine_deployment(config: Path | None) -> Iterator[Piece]:
    """Look at the cluster, the buckets and the database of a deployment; this may take minutes. Raises `AccelCiError`."""
    from accel_ci.pool.kubernetes.examination import examine_cluster

    project = load_project(config)
    settings, pool = project.settings, project.settings.pool
    require_configured_extras(settings)
    if not isinstance(pool, KubernetesPoolSettings):
        raise AccelCiError(f"pool.kind is {pool.kind}: `--cluster` looks at deployments on Kubernetes")
    for finding in examine_cluster(pool, pool.image or _newest_image(Workspace(project))):
        yield Piece(finding.name, finding.usable, finding.state, True, "runs on the cluster", finding.how)
    for name, how, check in (
        ("buckets", "look at store, results and pool.bucket, and at the keys for them", partial(check_stores, settings)),
        ("PostgreSQL", "raise max_connections, or lower max_concurrent_runs in dagster.yaml", _postgres_connections),
    ):
        try:
            usable, state = True, check() or "none is configured"
        except (AccelCiError, OSError) as error:
            usable, state = False, str(error)
        yield Piece(name, usable, state, True, "runs on the cluster", how)


_MOST_CONNECTIONS = 0.8
"""The share of PostgreSQL's connections above which a few more runs would be refused."""


def _postgres_connections() -> str | None:
    """Ask the database of Dagster's instance how many connections it has left; None where it is no PostgreSQL."""
    import yaml
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError

    file = Path(os.environ.get("DAGSTER_HOME", "")) / "dagster.yaml"
    if not file.is_file():
        return None
    storage = (yaml.safe_load(file.read_bytes()) or {}).get("storage") or {}
    named = (storage.get("postgres") or {}).get("postgres_url")
    url = os.environ.get(named["env"]) if isinstance(named, dict) else named
    if url is None:
        return None
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg2://", 1), connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            most = int(connection.execute(text("SHOW max_connections")).scalar_one())
            used = int(connection.execute(text("SELECT count(*) FROM pg_stat_activity")).scalar_one())
    except SQLAlchemyError as error:
        raise AccelCiError(f"the database of {file} does not answer: {type(error).__name__}") from None
    finally:
        engine.dispose()
    if used > most * _MOST_CONNECTIONS:
        raise AccelCiError(f"{used} of {most} connections are taken")
    return f"{used} of {most} connections are taken"


def _newest_image(workspace: Workspace) -> str | None:
    """The Docker image of the newest build that has one."""
    for build in workspace.manifests.list_builds():
        path = workspace.manifests.path(RUNTIME_IMAGE, build.revision, build.variant)
        image = workspace.manifests.read_history(path, RuntimeImage)
        if image is not None and (container := image.container("runtime")) is not None:
            return container.reference
    return None


_FOR = {
    "stores": ("a results store or rounds in a bucket", "look at results and pool.bucket, and at the keys for them"),
    "pool": ("tests in containers or on a cluster", "look at the section pool"),
    "images": ("runtime images by Docker or Buildah", "look at the section image"),
    "Bazel": ("source builds: accel-ci run nightly_rbe", "install bazelisk, or set rbe.bazel or ACCEL_CI_BAZEL"),
    "remote execution": ("source builds away from this machine", "check rbe.executor and the network"),
}
"""The use of each need of a run, and how to meet it."""


def _needs(config: Path | None) -> Iterator[Piece]:
    """Check the needs of the configured pipelines, as the start of a run does."""
    try:
        settings = load_project(config).settings
        require_configured_extras(settings)
    except AccelCiError:  # the piece "configuration" shows it
        return
    for answer in ask(needs_of(settings, PIPELINES)):
        usable, state = answer.problem is None, answer.problem or answer.state or "not needed by this configuration"
        yield Piece(answer.need.name, usable, state, False, *_FOR[answer.need.name])


def _program(*names: str) -> tuple[bool, str]:
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found is not None, found or "not installed"


def _uv(_: Path | None) -> tuple[bool, str]:
    import uv

    return True, uv.find_uv_bin()


def _packages(_: Path | None) -> tuple[bool, str]:
    from accel_ci.wheels.uv_environment import uv_environment

    environment = uv_environment()
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_OFFLINE")
    own = [name for name in names if environment.get(name)]  # only the names: the values may hold credentials
    return True, f"{', '.join(own)} set" if own else "the default index"


def _backend(config: Path | None) -> tuple[bool, str]:
    from accel_ci.source.refs import resolve_source

    project = load_project(config)
    backend = project.settings.backend
    source = resolve_source(backend.repository, backend.ref, backend.subdirectory, project.root, timeout_s=10)
    return True, f"{backend.ref} is at {source.sha}"


def _cards(config: Path | None) -> tuple[bool, str]:
    return check_cards(Workspace(load_project(config)))


def _disk(config: Path | None) -> tuple[bool, str]:
    return check_disk(load_project(config).home)


def _clock(config: Path | None) -> tuple[bool, str]:
    workspace = Workspace(load_project(config))
    return check_clock(workspace.project.settings, workspace.manifests)


def _upstream(config: Path | None) -> tuple[bool, str]:
    from accel_ci.source.refs import resolve_source

    project = load_project(config)
    upstream = project.settings.upstream
    source = resolve_source(upstream.repository, upstream.ref, ".", project.root, timeout_s=10)
    return True, f"{upstream.ref} is at {source.sha}"


def _docker(_: Path | None) -> tuple[bool, str]:
    from accel_ci.docker.client import engine_version

    version = engine_version()
    return version is not None, f"engine {version}" if version else "no Docker engine answers"


def _kubernetes(_: Path | None) -> tuple[bool, str]:
    import yaml

    path = Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")
    if not path.is_file():
        return False, "no KUBECONFIG"
    try:
        clusters = yaml.safe_load(path.read_bytes())["clusters"]
        address = urlsplit(clusters[0]["cluster"]["server"])
    except (yaml.YAMLError, LookupError, TypeError):
        return False, f"{path} cannot be read"
    return _answers(address, 443)


def _answers(address: SplitResult, default_port: int) -> tuple[bool, str]:
    with socket.create_connection((address.hostname, address.port or default_port), timeout=5):
        return True, f"{address.netloc} answers"


def _chromium(_: Path | None) -> tuple[bool, str]:
    named = os.environ.get("ACCEL_CI_CHROMIUM")
    return (Path(named).is_file(), named) if named else _program("chromium", "chromium-browser", "google-chrome")
