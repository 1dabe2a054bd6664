"""`check-wheel`: run the checks that need only a wheel file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accel_ci.cli.context import terminal

if TYPE_CHECKING:
    from accel_ci.config.settings import Wheels


@click.command("check-wheel")
@click.argument("wheels", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--platform", help="The newest platform that compiled code may need, such as manylinux_2_28_x86_64.")
@click.option(
    "--allow", "allowed", multiple=True, help="A library that need not be in the wheel; `*` is a wildcard. Repeatable."
)
@click.option("--size-budget", help="The largest size, such as 200m.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def check_wheel(
    context: click.Context,
    wheels: tuple[Path, ...],
    platform: str | None,
    allowed: tuple[str, ...],
    size_budget: str | None,
    as_json: bool,
) -> None:
    """Run the checks that need only the file on WHEELS. The section `wheels` of the configuration, if any, sets the rules.

    Warnings do not fail a check, unless `wheels.strict` is set. Exit status: 0 if all checks pass, 1 if one fails, 2 for
    usage errors.
    """
    import json
    from dataclasses import asdict

    from rich.markup import escape
    from rich.table import Table

    from accel_ci.wheels.audit import audit_wheel
    from accel_ci.wheels.findings import shown
    from accel_ci.wheels.uv_environment import uv_environment

    rules = _rules(context, {"platform": platform, "size_budget": size_budget, "external_libraries": allowed})
    environment = uv_environment()
    found = {wheel: audit_wheel(wheel, rules, environment) for wheel in wheels}
    if as_json:
        checks = [
            {"wheel": wheel.name, "path": str(wheel), "checks": [asdict(check) for check in of_it]}
            for wheel, of_it in found.items()
        ]
        click.echo(json.dumps(checks))
    else:
        for wheel, of_it in found.items():
            table = Table("check", "", "finding", title=escape(shown(wheel.name)), title_justify="left", box=None)
            for check in of_it:
                mark = "✗" if not check.passed else "!" if check.warnings else "✓"
                table.add_row(check.name, mark, escape(check.summary))
                findings = (*check.findings, *(f"warning: {warning}" for warning in check.warnings))
                for finding in findings[:20] if (*check.findings, *check.warnings) != (check.summary,) else ():
                    table.add_row("", "", escape(f"  {finding}"))
                if len(findings) > 20:
                    table.add_row("", "", f"  … and {len(findings) - 20} more (--json has all)")
            terminal()[0].print(table)
    sys.exit(0 if all(check.passed for of_it in found.values() for check in of_it) else 1)


def _rules(context: click.Context, asked: dict[str, Any]) -> Wheels:
    """The configured rules, overridden by command-line options; the default rules if there is no configuration file."""
    from pydantic import ValidationError

    from accel_ci.config.loading import find_config, load_project
    from accel_ci.config.settings import Wheels
    from accel_ci.errors import ConfigError

    try:
        there = find_config(context.obj)
    except ConfigError:
        if context.obj is not None:
            raise
        rules = Wheels()
    else:
        rules = load_project(there).settings.wheels
    try:
        return Wheels.model_validate(rules.model_dump() | {key: value for key, value in asked.items() if value})
    except ValidationError as error:
        [first, *_] = error.errors()
        raise click.UsageError(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}") from None
