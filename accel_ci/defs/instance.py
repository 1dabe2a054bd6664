"""The Dagster instance: the user's own where `$DAGSTER_HOME` names one, else one embedded in the data folder."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef  # the public class has no way to override a part of the file
from filelock import FileLock

from accel_ci.config.settings import Project
from accel_ci.defs.liveness import end_dead_runs
from accel_ci.errors import ConfigError
from accel_ci.storage.atomic_file import replace_link, write_whole_file
from accel_ci.storage.disk_faults import describe_disk_fault, texts_of

_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]
"""The statuses of runs that are queued or running."""


def prepare_dagster_home(project: Project) -> Path:
    """Return the folder for `DAGSTER_HOME`; without one of the user's, make it with the project's or our `dagster.yaml`."""
    if os.environ.get("DAGSTER_HOME"):
        return Path(os.environ["DAGSTER_HOME"])
    home = project.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    ignore = project.home / ".gitignore"
    if not ignore.is_file():  # the data folder may lie in a repository, and is not source
        ignore.write_text("*\n")
    link, own = home / "dagster.yaml", project.root / "dagster.yaml"
    with as_file(files("accel_ci") / "dagster.yaml") as packaged:
        target = own if own.is_file() else packaged.resolve()
        if not link.exists() or not link.samefile(target):
            replace_link(link, target)
    return home


@contextmanager
def workspace_file(project: Project) -> Iterator[Path]:
    """Have the workspace file of `accel-ci dev`: ours, or one in the data folder that names the project's location."""
    with as_file(files("accel_ci") / "workspace.yaml") as packaged:
        if (location := project.settings.location) is None:
            yield packaged
            return
        document = yaml.safe_load(packaged.read_text("utf-8"))
        document["load_from"][0]["python_module"]["location_name"] = location
        own = project.home / "workspace.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(own, yaml.safe_dump(document).encode())
        yield own


def open_instance(project: Project) -> dg.DagsterInstance:
    """Open the instance that the command line shares with the UI and the daemon, and report runs that were killed.

    Output stays on the terminal: Dagster would redirect that of steps into files, with two more processes for each step.
    Raises `ConfigError` when `dagster.yaml` has a mistake, or what it names cannot be reached.
    """
    manager = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager", "config": {}}
    home = prepare_dagster_home(project)
    try:
        with _one_that_makes_tables(project) as make_tables:
            instance = dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides={"compute_logs": manager}))
            make_tables(instance)
    except Exception as error:  # Dagster's own, those of YAML, of the database and of what the file names
        if describe_disk_fault(texts_of(error), project.home) is not None:
            raise
        raise ConfigError(f"{home / 'dagster.yaml'}: {_explain(error)}") from error
    _require_own_tables(instance, home)
    end_dead_runs(instance, project.home)
    return instance


def database_of(project: Project) -> str:
    """Return the URL of the PostgreSQL database of the instance, whatever is in it. Raises `ConfigError` without one."""
    home = prepare_dagster_home(project)
    try:
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as instance:
            url = getattr(instance.run_storage, "postgres_url", None)
    except Exception as error:
        raise ConfigError(f"{home / 'dagster.yaml'}: {_explain(error)}") from error
    if url is None:
        raise ConfigError(
            f"{home / 'dagster.yaml'} names no PostgreSQL: all of the project is in {project.home}; copy that folder while "
            "nothing runs"
        )
    return str(url)


def upgrade_instance(project: Project, say: Callable[[str], None]) -> None:
    """Bring the instance's tables to this release of Dagster, as `dagster instance migrate` does. Raises `ConfigError`."""
    home = prepare_dagster_home(project)
    try:
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home))) as instance:
            instance.upgrade(lambda text: say(str(text)))
    except Exception as error:
        raise ConfigError(f"{home / 'dagster.yaml'}: {_explain(error)}") from error


def _require_own_tables(instance: dg.DagsterInstance, home: Path) -> None:
    """Raise `ConfigError` if the tables in PostgreSQL are of another release of Dagster."""
    storage: Any = instance.run_storage
    if getattr(storage, "postgres_url", None) is None:
        return
    there, own = storage.alembic_version()
    if there != own:
        raise ConfigError(
            f"{home / 'dagster.yaml'}: the tables in PostgreSQL are of another release of Dagster (revision {there}; this "
            f"one has {own}): if they are older, make a backup and run `accel-ci upgrade`; if they are newer, use that "
            "release, or restore the backup from before (docs/upgrade.md)"
        )


@contextmanager
def _one_that_makes_tables(project: Project) -> Iterator[Callable[[dg.DagsterInstance], None]]:
    """Have the tables of the embedded instance made once, by a function: two that made them at once would fail."""
    mark = project.home / "dagster" / ".made"

    def make(instance: dg.DagsterInstance) -> None:
        instance.get_runs_count()
        instance.has_dynamic_partition("none", "none")
        instance.all_instigator_state()
        mark.touch()

    if os.environ.get("DAGSTER_HOME") or mark.exists():
        yield lambda instance: None
    else:
        with FileLock(mark.with_suffix(".lock")):
            yield make


def _explain(error: Exception) -> str:
    """Explain in a line why an instance cannot be opened, and what to do."""
    mistakes = [mistake.message for mistake in getattr(error, "errors", ())] or [str(error)]
    unset = re.findall(r'environment variable "([^"]+)" which is not set', "\n".join(mistakes))
    if unset:
        return f"it names {', '.join(dict.fromkeys(unset))}, which the environment does not have; set it"
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # of Dagster's "too many retries"
    text = mistakes[0] if cause is error else str(cause)
    return f"{' '.join(text.partition('(Background on this error')[0].split())}; correct it, or start what it names"
