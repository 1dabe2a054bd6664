"""What is made anew from all results once a ledger lands: flakiness and the HUD. Not partitioned."""

from datetime import datetime, timezone

import dagster as dg
from filelock import FileLock

from accel_ci.defs.metadata import table
from accel_ci.hud.gather import gather
from accel_ci.hud.render import write_hud
from accel_ci.progress import Progress
from accel_ci.quality.flakiness import Flakiness, measure
from accel_ci.workspace import Workspace

GROUP = "quality"


def quality_assets(workspace: Workspace) -> list[dg.AssetsDefinition]:
    """Flakiness and the HUD."""
    settings = workspace.project.settings
    owners = list(settings.backend.owners)

    @dg.asset(group_name=GROUP, owners=owners, deps=["ledger"], kinds={"duckdb"})
    def flakiness(progress: dg.ResourceParam[Progress]) -> dg.MaterializeResult[Flakiness]:
        """Tests that both passed and failed in one build, over the window, with the interval of their rate."""
        with progress.step("flakiness") as step:
            found = current_flakiness(workspace)
            step.note(f"{len(found.flaky)} of {found.tests} tests are flaky")
        return dg.MaterializeResult(
            value=found,
            metadata={
                "tests": found.tests,
                "flaky": len(found.flaky),
                "window_days": found.window_days,
                "worst": table(
                    ["variant", "suite", "test", "flaky builds", "builds", "rate", "95 % interval"],
                    [
                        [f.variant, f.suite, f.test, f.flaky_builds, f.builds, f"{f.rate:.1%}",
                         f"{f.rate_low:.1%} to {f.rate_high:.1%}"]
                        for f in found.flaky
                    ],
                ),
            },
        )  # fmt: skip

    @dg.asset(group_name=GROUP, owners=owners, deps=["ledger"], kinds={"html"})
    def hud(flakiness: Flakiness, progress: dg.ResourceParam[Progress]) -> dg.MaterializeResult[None]:
        """The static page that shows every build to everybody."""
        with progress.step("hud") as step:
            page = refresh_hud(workspace, flakiness)
            step.note(page)
        return dg.MaterializeResult(metadata={"page": dg.MetadataValue.url(page)})

    return [flakiness, hud]


def current_flakiness(workspace: Workspace) -> Flakiness:
    """Flakiness as of now."""
    window = workspace.project.settings.quality.window_days
    today = datetime.now(timezone.utc).date()
    return measure(workspace.results, today, window)


def refresh_hud(workspace: Workspace, flakiness: Flakiness) -> str:
    """Write the HUD anew; its address is given back."""
    project = workspace.project
    with FileLock(workspace.hud.with_suffix(".lock")):  # whoever looks later writes later
        name, now = project.settings.backend.name, datetime.now(timezone.utc)
        page = gather(project.home, workspace.results, name, flakiness, now=now)
        return write_hud(page, workspace.hud).as_uri()
