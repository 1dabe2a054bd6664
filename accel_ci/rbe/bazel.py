"""Run `bazel test`: its command line, its credentials for remote execution, and a cleanup that leaves nothing behind.

Bazel reads its credentials from a pipe. It repeats its options in the build events, so these go through a pipe that removes
secrets; its server keeps no log. The server is ended with every run, by a watcher if the run is killed.
`accel_ci.rbe.results` reads the events.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from subprocess import DEVNULL, Popen

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from accel_ci.config.settings import Rbe
from accel_ci.docker.container import Container, Mount, running
from accel_ci.errors import BuildError
from accel_ci.model import SourceBuild
from accel_ci.process.redacted_pipe import RedactedPipe
from accel_ci.process.tree import end_processes, ended_with_this, with_argument
from accel_ci.progress import Step
from accel_ci.rbe.credentials import credentials_pipe
from accel_ci.rbe.progress import BuildProgress
from accel_ci.redaction import OF_THIS_PROCESS, Redactor
from accel_ci.storage.atomic_file import write_whole_file
from accel_ci.storage.file_lock import acquire_or_wait

BAZEL_ENVIRONMENT = "ACCEL_CI_BAZEL"
"""Names the Bazel of this machine; takes precedence over the configured one."""

_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "JAVA_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
_OPTION_EVENTS = ("started", "structuredCommandLine", "unstructuredCommandLine", "optionsParsed")
_IDLE_S = 15
_GRACE_S = 10
_LOOK_EVERY_S = 0.25
_UNSTORED = "unstored.json"
_REPORTS = ("test.log", "test.xml")


@dataclass(frozen=True)
class BazelContext:
    """The folders of Bazel: `folder` is its own, one per variant; `results` is for the output of a run."""

    folder: Path
    results: Path

    @property
    def output_base(self) -> Path:
        """Bazel's outputs and its cache of actions; shared by all revisions, so that unchanged outputs are reused."""
        return self.folder / "output"

    @property
    def server_argument(self) -> str:
        """The argument that only this folder's Bazel processes have."""
        return f"--output_base={self.output_base}"

    @property
    def private(self) -> Path:
        """The folder for pipes and for output that may repeat credentials; it is deleted with every run."""
        return self.folder / "private"


@dataclass(frozen=True)
class BazelPass:
    """One `bazel test` of a run.

    `folder` holds `bep.ndjson`, `testlogs/`, and `actions/` with the output of failed actions. `status` is None if Bazel
    was ended at its time limit.
    """

    name: str
    folder: Path
    status: int | None


@dataclass(frozen=True)
class BazelRun:
    """A finished run: its passes, and the output of all of them in `log`."""

    passes: tuple[BazelPass, ...]
    log: Path
    started_at: datetime
    makespan_s: float


_RUN = TypeAdapter(BazelRun)


def keep_run(run: BazelRun, key: str, context: BazelContext) -> None:
    """Keep a finished run in its results folder until it is stored. `key` names what was built and tested."""
    write_whole_file(context.results / _UNSTORED, json.dumps([key, _RUN.dump_python(run, mode="json")]).encode())


def kept_run(key: str, context: BazelContext) -> BazelRun | None:
    """Return the run of that key that was not stored; None when there is none."""
    try:
        known, run = json.loads((context.results / _UNSTORED).read_bytes())
        return _RUN.validate_python(run) if known == key else None
    except (OSError, ValueError):
        return None


def forget_run(context: BazelContext) -> None:
    """Forget a run that is stored, or that nobody can store."""
    (context.results / _UNSTORED).unlink(missing_ok=True)


def find_bazel(rbe: Rbe, environment: Mapping[str, str] = os.environ) -> str:
    """Find the Bazel to run. Raises `BuildError` if there is none."""
    name = environment.get(BAZEL_ENVIRONMENT) or rbe.bazel
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if found is None:
        raise BuildError(f"{name} is not installed; install bazelisk, or name a Bazel in rbe.bazel or ${BAZEL_ENVIRONMENT}")
    return found


def read_secrets(rbe: Rbe, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read the values of the headers. Raises `BuildError` if a variable is not set; the message never has a value."""
    secrets = {}
    for header, variable in rbe.headers.items():
        value = environment.get(variable, "")
        if not value or any(ord(letter) < 32 for letter in value):
            state = "holds a line break or a control character" if value else "is not set"
            raise BuildError(f"rbe.headers.{header}: {variable} {state} in the environment of accel-ci or the daemon")
        secrets[header] = value
    return secrets


def run_bazel(
    rbe: Rbe, sources: SourceBuild, context: BazelContext, substitutions: Mapping[str, str], step: Step
) -> BazelRun:
    """Build and test the targets of the workspace. The results hold Bazel's output, whatever its exit status.

    `substitutions` are the values of the names in braces in the flags. Raises `BuildError` if Bazel or its container cannot
    be started or credentials are missing. No Bazel process is left when this ends, in whichever way.
    """
    secrets = read_secrets(rbe)
    OF_THIS_PROCESS.learn(secrets.values())
    context.folder.mkdir(parents=True, exist_ok=True)
    with acquire_or_wait(context.folder / "lock", step.say, "Bazel"), ended_with_this(context.server_argument, _GRACE_S):
        clean_up(context)
        shutil.rmtree(context.results, ignore_errors=True)
        context.results.mkdir(parents=True)
        context.private.mkdir(mode=0o700)
        started_at, started = datetime.now(timezone.utc), time.monotonic()
        own = [_substituted(flag, substitutions) for flag in rbe.flags]
        try:
            with _site(rbe, sources, context) as site:
                run = _Run(rbe, Path(sources.workspace), context, site, secrets, started + rbe.timeout_seconds, step, set())
                passes = tuple(run.test(name, [*own, *flags]) for name, flags in _passes(rbe))
        finally:
            clean_up(context)
    return BazelRun(passes, context.results / "bazel.log", started_at, round(time.monotonic() - started, 3))


def clean_up(context: BazelContext) -> None:
    """End the processes of the output base, and delete what they may have repeated credentials in."""
    end_processes(context.server_argument, _GRACE_S)
    shutil.rmtree(context.private, ignore_errors=True)
    server = context.output_base / "server" / "jvm.out"
    for log in (*context.output_base.glob("java.log*"), server, context.output_base / "command.log"):
        log.unlink(missing_ok=True)


def clean_up_abandoned(folders: Path, *, dry_run: bool = False) -> list[str]:
    """Clean up after the runs below a folder that were killed, and return their folders; with `dry_run` only return them."""
    found = []
    for lock_file in sorted(folders.glob("*/lock")):
        context = BazelContext(lock_file.parent, lock_file.parent)
        try:
            with FileLock(lock_file).acquire(timeout=0):  # a run that begins meanwhile waits
                if context.private.exists() or with_argument(context.server_argument):
                    found.append(str(context.folder))
                    if not dry_run:
                        clean_up(context)
        except Timeout:  # a run has it
            continue
    return found


@dataclass(frozen=True)
class _Site:
    """The place where Bazel runs: this machine, or a container, which then keeps the outputs."""

    bazel: str
    output_base: Path
    install: Path
    outputs: Path
    container: Container | None


@contextmanager
def _site(rbe: Rbe, sources: SourceBuild, context: BazelContext) -> Iterator[_Site]:
    if rbe.image is None:
        yield _Site(find_bazel(rbe), context.output_base, context.folder.parent / "install", context.private, None)
        return
    tree = next(path for path in (Path(sources.workspace), *Path(sources.workspace).parents) if path.name == sources.digest)
    mounts = [Mount(tree, tree), Mount(context.private, context.private, read_only=False)]
    with running(rbe.image, context.folder, mounts, pull_s=rbe.timeout_seconds) as container:
        inside = Path("/tmp/accel-ci-bazel")  # noqa: S108
        yield _Site(rbe.bazel, inside / "output", inside / "install", inside, container)


def _substituted(flag: str, substitutions: Mapping[str, str]) -> str:
    for name, value in substitutions.items():
        flag = flag.replace(f"{{{name}}}", value)
    return flag


def _command_line(rbe: Rbe, site: _Site, events: Path, credentials: Path, flags: Iterable[str]) -> list[str]:
    """The command of one pass; it holds no secret."""
    remote = {
        "remote_executor": rbe.executor,
        "remote_cache": rbe.cache,
        "remote_instance_name": rbe.instance_name,
        "bes_backend": rbe.event_service,
        "bes_results_url": rbe.event_results_url,
    }
    return [
        site.bazel,
        f"--output_user_root={site.install}",
        f"--output_base={site.output_base}",
        f"--max_idle_secs={_IDLE_S}",  # should the watcher be killed too
        "--host_jvm_args=-Djava.util.logging.config.file=/dev/null",  # the server would log its options
        "--nohome_rc",
        f"--bazelrc={credentials}",
        "test",
        f"--build_event_json_file={events}",
        "--nobuild_event_json_file_path_conversion",
        f"--symlink_prefix={site.outputs / 'bazel-'}",
        "--nogenerate_json_trace_profile",
        "--color=no",
        "--curses=no",
        "--noshow_progress",
        "--build_tests_only",
        "--keep_going" if rbe.keep_going else "--nokeep_going",
        f"--flaky_test_attempts={rbe.flaky_test_attempts}",
        *(f"--config={config}" for config in rbe.configs),
        *(f"--{name}={value}" for name, value in remote.items() if value is not None),
        *(_REMOTE if rbe.executor is not None else ()),
        *flags,
        "--",
        *rbe.targets,
    ]


# Download only the logs and reports of tests; other outputs stay in the remote cache.
_REMOTE = ("--remote_download_outputs=minimal", r"--remote_download_regex=.*/test\.(log|xml)$")


def _passes(rbe: Rbe) -> list[tuple[str, list[str]]]:
    """The passes with their flags: one with all tests, and if configured, a separate one for tests of several cards."""
    filters = list(rbe.test_tag_filters)
    if rbe.multi_card is None:
        return [("tests", [f"--test_tag_filters={','.join(filters)}"] if filters else [])]
    tag = rbe.multi_card.tag
    without = [*filters, f"-{tag}"]
    only = [tag, *(excluded for excluded in filters if excluded.startswith("-"))]
    several = [f"--test_tag_filters={','.join(only)}", f"--strategy=TestRunner={rbe.multi_card.strategy}"]
    return [
        ("tests", [f"--test_tag_filters={','.join(without)}"]),
        (tag, [*several, "--test_sharding_strategy=disabled", "--local_test_jobs=1", *rbe.multi_card.flags]),
    ]


@dataclass(frozen=True)
class _Run:
    """The context that all passes of a run share."""

    rbe: Rbe
    workspace: Path
    context: BazelContext
    site: _Site
    secrets: Mapping[str, str]
    deadline: float
    step: Step
    tests: set[str]

    def test(self, name: str, flags: Sequence[str]) -> BazelPass:
        """Run one pass and keep its output."""
        folder = self.context.results / name
        folder.mkdir()
        redactor, pipe = OF_THIS_PROCESS, self.context.private / "events"
        with (
            credentials_pipe(self.context.private, self.secrets, self.rbe.event_service is not None) as credentials,
            RedactedPipe.named(pipe, folder / "bep.ndjson", redactor, _OPTION_EVENTS) as events,
            RedactedPipe.unnamed(self.context.results / "bazel.log", redactor) as log,
        ):
            progress = BuildProgress(folder / "bep.ndjson", self.step, self.tests)
            command = _command_line(self.rbe, self.site, pipe, credentials.path, flags)

            def look() -> None:
                credentials.serve()
                events.pass_on(_LOOK_EVERY_S)
                log.pass_on(0)
                progress.look()

            try:
                status = self._wait(command, log.writable, look)
            finally:
                self._keep_reports(folder, redactor)
        return BazelPass(name, folder, status)

    def _wait(self, command: list[str], output: int, look: Callable[[], None]) -> int | None:
        """Wait for the command. Return its exit status, or None if it was ended at the deadline."""
        folder, environment, container = self.workspace, _environment(self.rbe), self.site.container
        if container is not None:
            own = {n: v for n, v in environment.items() if n in self.rbe.pass_environment}
            command = container.command(command, folder, own)
            environment |= {n: v for n, v in os.environ.items() if n.startswith("DOCKER_")}
        with Popen(
            command, cwd=folder, env=environment, stdin=DEVNULL, stdout=output, stderr=output, start_new_session=True
        ) as process:
            try:
                while process.poll() is None:
                    if time.monotonic() > self.deadline:
                        _interrupt(process, look)
                        return None
                    look()
                look()
            except BaseException:
                _interrupt(process, look)
                raise
        return process.returncode

    def _keep_reports(self, folder: Path, redactor: Redactor) -> None:
        """Copy the logs and reports of tests and the output of failed actions, but no build outputs."""
        testlogs, actions = self.site.outputs / "bazel-testlogs", self.site.output_base
        if self.site.container is not None:
            fetched = self.context.private / "fetched"
            shutil.rmtree(fetched, ignore_errors=True)
            inside = ["sh", "-c", _FETCH, "fetch", str(actions), str(testlogs), str(fetched)]
            with suppress(BuildError):  # the container may be gone; the events remain
                self.site.container.run(inside, Path("/"))
            testlogs, actions = fetched / "testlogs", fetched
        for parent, _, names in os.walk(testlogs):
            for name in names:
                if name in _REPORTS or Path(parent).name == "test_attempts":
                    copy = folder / "testlogs" / Path(parent).relative_to(testlogs) / name
                    _copy(Path(parent) / name, copy, redactor)
        for file in actions.glob("execroot/*/bazel-out/_tmp/actions/std*"):
            _copy(file, folder / "actions" / file.name, redactor)


_FETCH = """
mkdir -p "$3/testlogs"
if [ -d "$2" ]; then (cd "$2/" && tar -cf - .) | tar -xf - -C "$3/testlogs"; fi
for folder in "$1"/execroot/*/bazel-out/_tmp/actions; do
  if [ -d "$folder" ]; then mkdir -p "$3/${folder#"$1"/}" && cp -R "$folder/." "$3/${folder#"$1"/}"; fi
done
"""


def _interrupt(process: Popen[bytes], look: Callable[[], None]) -> None:
    """Have Bazel cancel its work and read its last output, then kill it."""
    deadline = time.monotonic() + _GRACE_S
    try:
        _signal_group(process, signal.SIGINT)
        while process.poll() is None and time.monotonic() < deadline:
            look()
    finally:  # writing its output may have been what failed
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _environment(rbe: Rbe) -> dict[str, str]:
    """The environment of Bazel: without our secrets."""
    hidden = set(rbe.headers.values())
    return {n: v for n, v in os.environ.items() if n in (*_KEPT, *rbe.pass_environment) and n not in hidden}


def _copy(source: Path, destination: Path, redactor: Redactor) -> None:
    if source.is_file():
        destination.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as lines, destination.open("wb") as output:
            output.writelines(map(redactor.content, lines))
