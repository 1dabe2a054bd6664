"""Write a shell script that gives developers a build's image and its failing tests on their own machine.

The script is self-contained: sources by commit, the image by digest or by exact pins, and the configured environment. It
holds no secrets: variables that are passed on to tests appear only by name, and URLs have no passwords.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from accel_ci.config.settings import UPSTREAM_TESTS, Project, Variant
from accel_ci.errors import AccelCiError
from accel_ci.model import Build, DeviceTestResults, Ledger, Revision, RuntimeImage, TestVerdict, Wheel, WorkerSpec
from accel_ci.pipelines import DEVICELESS_RESULTS, LEDGER, RUNTIME_IMAGE, SMOKE_RESULTS, STACK_SUITE, WHEEL
from accel_ci.pool.choose_pool import pool_for, worker_spec_for
from accel_ci.pool.sessions import files_of_pytorch_suites
from accel_ci.process.environment import ALLOWED
from accel_ci.redaction import redact, without_credentials
from accel_ci.results.questions import bad_tests, find_tests
from accel_ci.source.checkout import checkout_root
from accel_ci.source.git import local_path
from accel_ci.source.revision import checkout_backend
from accel_ci.source.upstream_tree import commit_of_tests
from accel_ci.storage.artifacts import ArtifactStore
from accel_ci.wheels.front_end import constraint_of, files_of
from accel_ci.wheels.uv_environment import PackageSource, package_of
from accel_ci.workspace import Workspace

_SOURCES = Path("/accel-ci/sources")
"""Stands in values for the folder that a script makes."""
_END_OF_FILE = "END_OF_FILE"
_OF_THE_SCRIPT = ("checkout", "image", "sources")
_UNSET_ALL_BUT = (
    "for name in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do "
    'case " {} " in *" $name "*) ;; *) unset "$name" ;; esac; done'
)


@dataclass(frozen=True)
class Reproduction:
    """A script, and the tests that it runs."""

    script: str
    tests: tuple[str, ...]
    in_container: bool


@dataclass(frozen=True)
class _Case:
    """A build, its manifests, and the tests to run."""

    project: Project
    artifacts: ArtifactStore
    build: Build
    variant: Variant
    revision: Revision
    wheel: Wheel
    image: RuntimeImage
    tests: tuple[str, ...]
    card: str | None
    spec: WorkerSpec
    pytest_args: tuple[str, ...]
    suites: tuple[str, ...]


def reproduction(workspace: Workspace, build: Build, test: str | None) -> Reproduction:
    """Write the script for one test of a build, or for all that did not pass.

    Raises `AccelCiError` if the build has no image or no such test, or if no test is given and all passed.
    """
    project, manifests = workspace.project, workspace.manifests
    revision = manifests.revision(build.revision)
    image_file = manifests.path(RUNTIME_IMAGE, build.revision, build.variant)
    if revision is None or not image_file.is_file():
        raise AccelCiError(f"{build.name} has no runtime image to run tests in; see `accel-ci status`")
    chosen = _choose(workspace, build, test)
    known = project.settings.suites
    with_cards = any(test.suite not in known or known[test.suite].stage != "deviceless" for test in chosen)
    tests = tuple(test.test for test in chosen)
    card = next((test.cards[0] for test in chosen if test.cards), "0") if with_cards else None
    image = manifests.read(image_file, RuntimeImage)
    wheel = manifests.read(manifests.path(WHEEL, build.revision, build.variant), Wheel)
    variant = project.settings.variant(build.variant)
    spec = worker_spec_for(project.settings, image, _SOURCES, with_cards=with_cards)
    suites = tuple(dict.fromkeys(test.suite for test in chosen))
    case = _Case(
        project, workspace.artifacts, build, variant, revision, wheel, image, tests, card, spec,
        _pytest_args(spec, chosen), suites,
    )  # fmt: skip
    options = pool_for(project.settings, with_cards=with_cards).docker_options(case.card or "0")
    how = _in_environment(case) if options is None else _in_container(case, options)
    script = "\n".join(["set -eu", *_sources(case), *_pytorch_tests(case), *how]) + "\n"
    return Reproduction(redact(script), case.tests, options is not None)


def _choose(workspace: Workspace, build: Build, test: str | None) -> list[TestVerdict]:
    """The named test, or all tests of the build that did not pass."""
    store, ran = workspace.results, _suites_of(workspace, build)
    if not ran:
        raise AccelCiError(f"{build.name} has no results, so its failures are unknown; see `accel-ci status`")
    if test is None:
        commands = {name for name, suite in workspace.project.settings.suites.items() if suite.commands}
        suites = [suite for suite in ran if not suite.startswith(STACK_SUITE) and suite not in commands]
        chosen = [verdict for verdict in bad_tests(store, build, suites) if verdict.verdict != "not_run"]
        if not chosen:
            raise AccelCiError(f"no test of {build.name} failed; name the test to reproduce")
        return chosen
    found = find_tests(store, build, test)
    chosen = [verdict for verdict in found if verdict.test == test or verdict.test.endswith(f"::{test}")]
    if len(chosen) != 1:
        near = ", ".join(verdict.test for verdict in found[:5])
        hint = f"similar tests: {near}" if near else "`accel-ci results` lists its tests"
        raise AccelCiError(f"{test!r} matches {len(chosen)} tests of {build.name}; {hint}")
    if (suite := chosen[0].suite).startswith(STACK_SUITE):
        component = suite.removeprefix(STACK_SUITE)
        advice = f"run the commands of the component {component} in a checkout at the commit that the build's page shows"
        raise AccelCiError(f"{test!r} is a unit test of the stack, which runs without the backend: {advice}")
    if suite in workspace.project.settings.suites and workspace.project.settings.suites[suite].commands:
        raise AccelCiError(f"{test!r} is a command of the suite {suite}: run it in a checkout of the backend")
    return chosen


def _suites_of(workspace: Workspace, build: Build) -> tuple[str, ...]:
    """The suites of a build that ran: those in its ledger, or those that failed so that it has none."""
    manifests = workspace.manifests
    if (ledger := manifests.find(LEDGER, build, Ledger)) is not None:
        return tuple(ledger.suites)
    stages = (manifests.find(stage, build, DeviceTestResults) for stage in (DEVICELESS_RESULTS, SMOKE_RESULTS))
    return tuple(suite for results in stages if results is not None for suite in results.suites)


def _pytest_args(spec: WorkerSpec, chosen: Sequence[TestVerdict]) -> tuple[str, ...]:
    """The arguments of the tests' suites, each once: one command runs them all."""
    sessions = (spec.sessions.get(test.suite) for test in chosen)
    return tuple(dict.fromkeys(argument for session in sessions if session is not None for argument in session.pytest_args))


def _sources(case: _Case) -> list[str]:
    backend, settings = case.revision.backend, case.project.settings.backend
    if backend.dirty:
        folder = checkout_backend(case.project, backend)
        whole = checkout_root(folder)
        return [
            f"# The sources: {backend.label} has uncommitted changes, so this is their copy on the build machine",
            f"checkout={shlex.quote(str(whole))} sources={shlex.quote(str(folder))}",
        ]
    remote, below = backend.repository, Path(backend.subdirectory)
    local = local_path(settings.repository, case.project.root)
    if local is not None:  # git fetches from a repository, not from a folder in it
        top = next((folder for folder in (local, *local.parents) if (folder / ".git").exists()), local)
        remote, below = str(top), local.relative_to(top) / below
    return [
        f"# The backend's sources at {backend.sha}",
        "git init --quiet backend",
        f"git -C backend remote add -- origin {shlex.quote(remote)}",
        f"git -C backend fetch --quiet --tags origin {backend.sha}",
        f"git -C backend checkout --quiet {backend.sha}",
        *(["git -C backend submodule update --quiet --init --recursive"] if settings.submodules else []),
        f'checkout="$PWD"/backend sources="$PWD"/backend/{shlex.quote(str(below))}',
    ]


def _pytorch_tests(case: _Case) -> list[str]:
    """Write what PyTorch's own tests need beside the backend's."""
    settings = case.project.settings
    suites = [settings.suites[name] for name in case.suites if name in settings.suites]
    if not any(suite.is_of_pytorch for suite in suites):
        return []
    files = files_of_pytorch_suites(settings.device, suites, checkout_backend(case.project, case.revision.backend))
    lines = []
    if case.revision.backend.dirty:
        lines.append('cp -R "$checkout" backend; sources="$PWD"/backend"${sources#"$checkout"}" checkout="$PWD"/backend')
    for name, content in files.items():
        place = f'"$sources"/{shlex.quote(name)}'
        lines += [f'mkdir -p "$(dirname {place})"', f"cat > {place} <<'{_END_OF_FILE}'", content.decode() + _END_OF_FILE]
    if any(suite.source == "upstream" for suite in suites):
        upstream = settings.upstream
        sha, git = commit_of_tests(upstream, case.variant, case.image, case.revision), f'git -C "$sources"/{UPSTREAM_TESTS}'
        address = without_credentials(upstream.mirror or upstream.repository)
        local = local_path(address, case.project.root)
        lines += [
            f"# PyTorch's tests at {sha}",
            f'git init --quiet "$sources"/{UPSTREAM_TESTS}',
            f"{git} remote add -- origin {shlex.quote(address if local is None else local.as_uri())}",
            f"{git} sparse-checkout set --cone -- {shlex.join(upstream.folders)}",
            f"{git} fetch --quiet --depth 1 --no-tags --filter=blob:none origin {sha}",
            f"{git} checkout --quiet {sha}",
        ]
    return lines


def _of_suites(case: _Case) -> list[str]:
    """The variables of the tests' suites as words for a shell. Raises `AccelCiError` if the suites contradict each other."""
    found: dict[str, str] = {}
    for name in case.suites:
        session = case.spec.sessions.get(name)
        for variable, value in (session.environment if session is not None else {}).items():
            if found.setdefault(variable, value) != value:
                raise AccelCiError(
                    f"the suites {', '.join(case.suites)} need different values of {variable}; name one test to reproduce"
                )
    return [f"{variable}={_in_shell(value)}" for variable, value in found.items()]


def _in_shell(value: str) -> str:
    below = Path(value)
    if below.is_relative_to(_SOURCES):
        return f'"$sources"/{shlex.quote(str(below.relative_to(_SOURCES)))}'
    return shlex.quote(value)


def _place(case: _Case) -> str:
    return f"on card {case.card}" if case.card is not None else "without a card"


def _environment(case: _Case) -> dict[str, str]:
    of_pool = {name: value for name, value in case.project.settings.pool.environment.items() if value is not None}
    configured = {**case.image.environment, **of_pool}
    selects: str | None = getattr(case.project.settings.pool, "card_environment", None)
    return {**configured, selects: case.card or ""} if selects else configured


def _pytest(case: _Case) -> list[str]:
    return ["-m", "pytest", *case.pytest_args, *case.tests]


def _in_container(case: _Case, options: Sequence[str]) -> list[str]:
    """A worker's container, made by `docker run` with the options of the pool."""
    pool, image, environment = case.project.settings.pool, case.spec.image, _environment(case)
    if image is None:
        raise AccelCiError(f"{case.build.name} was built without a Docker image; run it again with the section 'image'")
    command = [
        "docker", "run", *options,
        *(f"--env={name}={value}" for name, value in environment.items()),
        *(f"--env={name}" for name in pool.pass_environment if name not in environment),
    ]  # fmt: skip
    last = ["--entrypoint", case.spec.python, image, *_pytest(case)]
    mount = '--volume "$checkout":"$checkout":ro --workdir "$sources"'
    own = "".join(f" --env={word}" for word in _of_suites(case))
    run = f'exec {shlex.join(command)}{own} --user "$(id -u):$(id -g)" {mount} {shlex.join(last)}'
    built = case.image.container("runtime")
    local = built is not None and image == built.reference and "@" not in image
    tools = case.image.container("development")
    shell = []
    if tools is not None:
        bash = (
            f'docker run --rm -it --volume "$checkout":"$checkout" --workdir "$sources" {shlex.quote(tools.reference)} bash'
        )
        shell.append(f"# A shell with compilers and uv, to try changes: {bash}")
    title = "The image, which only the build machine has (set image.registry to push it)" if local else "The image"
    return [
        f"# {title}: Python {case.image.python_version}, PyTorch {case.image.torch_version} at {case.image.torch_sha}",
        f"docker image inspect --format ok {shlex.quote(image)}" if local else f"docker pull --quiet {shlex.quote(image)}",
        *shell,
        f"# {_count(case)} {_place(case)}",
        run,
    ]


def _in_environment(case: _Case) -> list[str]:
    """A virtual environment with the build's pins and wheels. Missing wheels are built again."""
    image, variant = case.image, case.variant
    own = {canonicalize_name(file.name.partition("-")[0]) for file in case.wheel.wheels}
    pins = [line for line in image.packages if canonicalize_name(re.split("[ =@]", line, maxsplit=1)[0]) not in own]
    torch = case.wheel.torch
    if torch is not None:
        pins = [torch if line == package_of(torch) else line for line in pins]
    only_here = [f"# {line.partition(' @ ')[0]} is a file of the build machine" for line in files_of(pins)]
    options = PackageSource.from_settings(variant.torch_backend).options
    index = [f'export UV_TORCH_BACKEND="${{UV_TORCH_BACKEND-{variant.torch_backend}}}"'] if options else []
    install = ["uv", "pip", "install", "--quiet", "--python", "image/bin/python", "--no-deps"]
    given = _environment(case)
    pool = case.project.settings.pool
    passed = " ".join(sorted({*ALLOWED, *pool.pass_environment, *_OF_THE_SCRIPT} - {*pool.unset_environment}))
    command = ["env", "PYTHONDONTWRITEBYTECODE=1", *(f"{name}={value}" for name, value in given.items())]
    return [
        f"# The image: Python {image.python_version}, PyTorch {image.torch_version} at {image.torch_sha}, exact pins",
        *index,
        "mkdir -p wheels",
        *_wheels(case),
        f"uv venv --quiet --clear --python {shlex.quote(image.python_version)} image",
        *only_here,
        f"{shlex.join([*install, '-r', '-'])} <<'EOF'",
        *pins,
        "EOF",
        f"{shlex.join([*install, '--no-index'])} wheels/*.whl",
        f"# {_count(case)} {_place(case)}",
        'image="$PWD"/image',
        'cd "$sources"',
        "# As in the build, tests see nothing else of the environment",
        _UNSET_ALL_BUT.format(passed),
        f'exec {" ".join([shlex.join(command), *_of_suites(case)])} "$image"/bin/python {shlex.join(_pytest(case))}',
    ]


def _wheels(case: _Case) -> list[str]:
    """The build's wheels: copied on the build machine, built from the same sources elsewhere."""
    artifacts, settings = case.artifacts, case.project.settings
    given = {**settings.backend.build_environment, **case.variant.build_environment}
    label = case.revision.backend.label if not case.wheel.public else ""
    environment = ["env", *(f"{name}={value.replace('{label}', label)}" for name, value in given.items())]
    folders = [*(each.subdirectory for each in settings.backend.companions), "."]
    lines = [f"echo {shlex.quote(constraint_of(case.wheel.torch or case.variant.torch))} > torch.txt"]
    for folder, wheel in zip(folders, case.wheel.wheels, strict=True):
        build = [*environment, "uv", "build", "--quiet", "--wheel", "--build-constraint", "torch.txt"]
        build += ["--python", case.variant.python, "--out-dir"]
        place = f'"$sources"/{shlex.quote(folder)}'
        lines += [
            f"cp {shlex.quote(str(artifacts.path(wheel)))} wheels/ 2>/dev/null ||",
            f'    {shlex.join(build)} "$PWD"/wheels {place}  # sha256 of the build: {wheel.sha256}',
        ]
    if case.wheel.patches:
        lines.insert(0, f"# The build applied {', '.join(case.wheel.patches)}; apply them before building a wheel again.")
    return lines


def _count(case: _Case) -> str:
    """Describe the tests for a comment; characters that could end its line are replaced."""
    name = "".join(character if character.isprintable() else "?" for character in case.tests[0])
    return name if len(case.tests) == 1 else f"{len(case.tests)} tests that did not pass"
