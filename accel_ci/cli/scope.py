"""Commands about the scope of suites: `scope report`, `scope explain`, `scope import`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accel_ci.cli.context import chosen_build, with_workspace
from accel_ci.cli.results import print_table
from accel_ci.errors import AccelCiError

if TYPE_CHECKING:
    from accel_ci.scope.importers.imported import Imported
    from accel_ci.workspace import Workspace

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
_FORMATS = ("pytorch-disabled", "torch-npu", "torch-spyre", "xpu-ops")
_TOLD = 10


@click.group()
def scope() -> None:
    """Look into the scope of suites: which tests run, and which rules say so."""


@scope.command()
@click.argument("build", required=False)
@_AS_JSON
@with_workspace
def report(workspace: Workspace, build: str | None, as_json: bool) -> None:
    """Count the tests of BUILD by status and reason, list its tolerances, and name rules to look at.

    These match nothing, are shadowed by earlier ones, or are about tests that pass. The rules are those of the settings as
    they are now. Without BUILD, it is the newest one.
    """
    from accel_ci.quality.scope_report import report_scope

    found = report_scope(workspace, chosen_build(workspace, build))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), default=str))
        return
    click.echo(found.build.name)
    counts = [[each.suite, each.collected, each.in_scope, each.enabled] for each in found.suites]
    print_table(["suite", "collected", "in scope", "enabled"], counts)
    groups = [
        [each.suite, status, reason, count]
        for each in found.suites
        for status in ("out_of_scope", "not_enabled", "modes")
        for reason, count in getattr(each, status).items()
    ]
    print_table(
        ["suite", "status", "reason", "tests"], [[a, "enabled" if b == "modes" else b, c, d] for a, b, c, d in groups]
    )
    tolerances = [[s.suite, t.rule, t.tests, t.atol, t.rtol, t.reason] for s in found.suites for t in s.tolerances]
    if tolerances:
        print_table(["suite", "tolerance", "tests", "atol", "rtol", "reason"], tolerances)
    print_table(["suite", "rule", "tests", "finding"], [[f.suite, f.rule, f.tests, f.finding] for f in found.findings])
    if not found.findings:
        click.echo("no rule needs to be looked at")


@scope.command()
@click.argument("test")
@click.option("--build", help="The build whose tests are looked at [default: the newest].")
@_AS_JSON
@with_workspace
def explain(workspace: Workspace, test: str, build: str | None, as_json: bool) -> None:
    """Say which rule decides TEST, and which others match it.

    TEST is an id, the end of one after `::`, or a part of one.
    """
    from accel_ci.quality.scope_report import explain_tests

    chosen = chosen_build(workspace, build)
    found = explain_tests(workspace, chosen, test)
    if not found:
        raise AccelCiError(f"{chosen.name} has collected no test whose id contains {test!r}")
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], default=str))
        return
    for each in found:
        decided = f" by {each.rule}" if each.rule else ""
        reason = f": {each.reason}" if each.reason else ""
        rows = [["status", f"{each.status}{decided}{reason}"], ["mode", each.mode]]
        rows += [[name, ", ".join(value) if isinstance(value, list) else value] for name, value in each.facts.items()]
        rows += [["matching rule", rule] for rule in each.matching]
        print_table(["suite", each.suite], [["test", each.test], *rows])


@scope.command("import")
@click.argument("source_format", metavar="FORMAT", type=click.Choice(_FORMATS))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file [default: print].")
@click.option("--device", help="The backend's device type, which takes the place of theirs in the names of tests.")
@click.option("--reason", help="The reason of the rules [pytorch-disabled: upstream_bug, others: not_implemented].")
@click.option("--platform", default="linux", show_default=True, help="pytorch-disabled: the platform that tests run on.")
def import_rules(
    source_format: str, file: Path, output: Path | None, device: str | None, reason: str | None, platform: str
) -> None:
    """Turn what another project knows of its tests into a file for `rule_files`.

    \b
    pytorch-disabled  PyTorch's list of disabled tests (JSON)
    torch-npu         torch_npu's lists of disabled tests (JSON)
    torch-spyre       torch-spyre's test_suite_config (YAML)
    xpu-ops           skip lists of torch-xpu-ops (Python, which is parsed and not executed)
    """  # noqa: D301 - click takes the control character
    from accel_ci.storage.atomic_file import write_whole_file

    found = _imported(source_format, file, device, reason, platform)
    text = f"# {source_format}: {file.name}\n{found.as_yaml()}"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole_file(output, text.encode())
    rules = sum(map(len, found.rules.values()))
    click.echo(f"{found.entries:,} entries became {rules:,} rules; {len(found.left_out):,} were left out", err=True)
    for reason_left_out in found.left_out[:_TOLD]:
        click.echo(f"  {reason_left_out}", err=True)


def _imported(source_format: str, file: Path, device: str | None, reason: str | None, platform: str) -> Imported:
    from accel_ci.scope.importers.disabled_tests import read_disabled_tests
    from accel_ci.scope.importers.imported import DeviceNames, read_text
    from accel_ci.scope.importers.skip_lists import read_skip_list
    from accel_ci.scope.importers.test_suite_config import read_test_suite_config

    theirs = {"torch-npu": "npu", "xpu-ops": "xpu"}.get(source_format)
    names = DeviceNames(theirs, device)
    because = reason or ("upstream_bug" if source_format == "pytorch-disabled" else "not_implemented")
    try:
        text = read_text(file)
        if source_format == "torch-spyre":
            return read_test_suite_config(text, because)
        if source_format == "xpu-ops":
            return read_skip_list(text, names, because)
        return read_disabled_tests(text, names, because, platform)
    except AccelCiError as error:
        raise AccelCiError(f"{file}: {error}") from error
