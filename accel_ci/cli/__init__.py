"""The command line, `accel-ci`. It is thin: each command calls the same functions as the assets.

The group of all commands is here; the commands are in modules by topic. Heavy imports wait until a command needs them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from accel_ci.cli.backup import backup, restore, upgrade
from accel_ci.cli.builds import accept, resume, run, status
from accel_ci.cli.check_wheel import check_wheel
from accel_ci.cli.ci import ci
from accel_ci.cli.dev import dev
from accel_ci.cli.metrics import metrics
from accel_ci.cli.notify import notify
from accel_ci.cli.project import doctor, init, validate
from accel_ci.cli.prune import janitor, prune
from accel_ci.cli.pulls import pulls
from accel_ci.cli.quality import causes, incidents, quality, quarantine
from accel_ci.cli.ramp import ramp, stage
from accel_ci.cli.relay import relay
from accel_ci.cli.release import release
from accel_ci.cli.reproduce import replay, reproduce
from accel_ci.cli.results import export, ingest, parse, results
from accel_ci.cli.scope import scope
from accel_ci.errors import AccelCiError
from accel_ci.json_logs import log_formatter
from accel_ci.process.hidden import hide_from_same_user
from accel_ci.redaction import redact_console
from accel_ci.secrets import learn_secrets


class _UserErrors(click.Group):
    """A group that prints only the message of an error that the user can fix, and exits with 2, or 1 for that of a disk."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except AccelCiError as error:
            click.echo(f"accel-ci: {error}", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("accel-ci: interrupted", err=True)
            sys.exit(130)
        except Exception as error:
            from accel_ci.storage.disk_faults import describe_disk_fault, texts_of

            if (fault := describe_disk_fault(texts_of(error), _data_folder(context.params.get("config")))) is None:
                raise
            click.echo(f"accel-ci: stopped: {fault}", err=True)
            sys.exit(1)


def _data_folder(config: Path | None) -> Path:
    from accel_ci.config.loading import data_folder, find_config

    try:
        return data_folder(find_config(config))
    except AccelCiError:
        return Path.cwd()


def _end_as_by_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Handle the loss of the terminal as whatever handles SIGTERM now does."""
    os.kill(os.getpid(), signal.SIGTERM)


class _StderrHandler(logging.Handler):
    """Writes to the current standard error, which a progress bar replaces while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


@click.group(cls=_UserErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration file [default: $ACCEL_CI_CONFIG, else accel_ci.yaml here or in a parent folder].",
)
@click.option("-v", "--verbose", count=True, help="Print the log: waits and retries; -vv prints more.")
@click.version_option(package_name="accel-ci")
@click.pass_context
def main(context: click.Context, config: Path | None, verbose: int) -> None:
    """CI/CD for PyTorch's out-of-tree accelerator backends."""
    hide_from_same_user()
    learn_secrets()
    redact_console()
    handler = _StderrHandler((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    handler.setFormatter(log_formatter())
    logger = logging.getLogger("accel_ci")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    # It prints a traceback where an interruption comes while it closes a connection, which is harmless.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    # Shells start background jobs with SIGINT ignored, and Dagster handles SIGTERM with the handler of SIGINT.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, _end_as_by_sigterm)
    context.obj = config


for command in (
    init, validate, run, resume, status, accept, dev, parse, ingest, results, export, replay, reproduce, check_wheel, doctor,
    janitor, prune, metrics, ramp, stage, scope, causes, incidents, quality, quarantine, backup,
    restore, upgrade, relay, notify, release, pulls, ci,
):  # fmt: skip
    main.add_command(command)
