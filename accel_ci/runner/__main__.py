"""The command line: `collect`, `collect-each`, `work` and, for these two alone, `collect-here`, `keep` and `child`.

Each command is imported only when it is run, so that a worker starts fast and a child does not load the supervisor.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

ROUND_URL = "ACCEL_CI_ROUND_URL"  # the variable that holds a signed URL when it must not be visible among the arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runner.pyz", description="Runs pytest beside an accelerator card.")
    commands = parser.add_subparsers(dest="command", required=True)

    collect = commands.add_parser("collect", help="list the tests under some paths as JSON")
    collect.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="for pytest's start and for each file"
    )
    apart = commands.add_parser("collect-each", help="do this for each of some files apart from the others")
    apart.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for pytest's start and for each file")
    here = commands.add_parser("collect-here")
    for number in ("report_fd", "parent"):
        here.add_argument(number, type=int)
    for each in (collect, apart, here):
        each.add_argument("--root", required=True, help="pytest's rootdir; node ids are relative to it")
        each.add_argument("--output", required=True, help="the JSON file to write")
        each.add_argument("--pytest-arg", action="append", default=[], dest="pytest_args")
        each.add_argument("paths", nargs="+", metavar="PATH", help="files and folders, relative to the root")

    work = commands.add_parser("work", help="claim batches and run them on one card")
    where = work.add_mutually_exclusive_group(required=True)
    where.add_argument("--plan", metavar="FILE", help="the plan of a round whose driver is on this machine")
    where.add_argument(
        "--round-url", metavar="URL", help=f"a signed URL of the round's invitation; '-' takes it from ${ROUND_URL}"
    )
    work.add_argument("--driver", metavar="SOCKET", help="with --plan: an inherited descriptor or a path, to the driver")
    work.add_argument("--worker", help="with --plan: the name that the driver has given")
    work.add_argument("--card", help="with --plan: the card's name")
    work.add_argument("--rank", type=int, default=0, help="with --plan: its position among workers that start together")
    work.add_argument("--identity", help="with --round-url: the name of this process for the driver (default: its host)")
    work.add_argument("--host", help="the name of the card's machine (default: this one's)")
    work.add_argument("--scratch", help="a folder for this worker alone (default, with --round-url: a new one)")
    work.add_argument("--card-environment", metavar="NAME", help="with --round-url: set this variable to the card's name")
    work.add_argument("--end-with", type=int, default=None, metavar="PID", help="end when this parent ends; 0: any parent")
    work.add_argument("--end-with-lock", default=None, metavar="FILE", help="end when this file's lock is not held")

    kept = commands.add_parser("keep", help="run a command, and end everything that it leaves behind")
    kept.add_argument("--grace", type=float, default=0.0, metavar="SECONDS", help="for the command to end by SIGTERM")
    kept.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND")

    child = commands.add_parser("child")
    for number in ("commands_fd", "results_fd", "control_fd", "parent"):
        child.add_argument(number, type=int)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "collect":
        from .collect_apart import collect_apart

        return collect_apart(arguments.root, arguments.output, arguments.pytest_args, arguments.paths, arguments.limit)
    if arguments.command == "collect-each":
        from .collect_each import collect_each

        return collect_each(arguments.root, arguments.output, arguments.pytest_args, arguments.paths, arguments.limit)
    if arguments.command == "collect-here":
        from .collect import collect

        return collect(
            arguments.report_fd, arguments.parent, arguments.root, arguments.output, arguments.pytest_args, arguments.paths
        )
    if arguments.command == "work":
        from .work import work_by_channel, work_by_invitation

        parent = os.getppid() if arguments.end_with == 0 else arguments.end_with
        here = os.uname().nodename
        host = arguments.host or here
        if arguments.round_url is not None:
            given = os.environ.pop(ROUND_URL, "")
            url = given if arguments.round_url == "-" else arguments.round_url
            if not url.startswith(("http://", "https://")):
                parser.error(f"--round-url is not a URL; pass an http or https URL, or '-' and set ${ROUND_URL}")
            return work_by_invitation(
                url, arguments.identity or here, host, arguments.scratch, arguments.card_environment, parent
            )
        if None in (arguments.driver, arguments.scratch, arguments.worker, arguments.card):
            parser.error("--plan needs --driver, --scratch, --worker and --card")
        return work_by_channel(
            arguments.plan, arguments.scratch, arguments.driver, arguments.worker, arguments.card, host, arguments.rank,
            parent, arguments.end_with_lock,
        )  # fmt: skip
    if arguments.command == "keep":
        from .keeper import end_like, keep

        end_like(keep(arguments.argv, grace_s=arguments.grace))
    from .child import run

    return run(arguments.commands_fd, arguments.results_fd, arguments.control_fd, arguments.parent)


if __name__ == "__main__":
    sys.exit(main())
