"""The tiers of tests, by folder or module: `make test-fast`, `make test` and `make test-nightly`.

A test belongs to `make test-fast` unless its place is in `SLOW`, and to `make test` unless it is in `LONG`. Where a test has
parameters that are for `make test-nightly` alone, those have the mark `long`.
"""

from __future__ import annotations

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SLOW = (
    "bridges/test_act.py",
    "bridges/test_remote_project.py",
    "bridges/test_replays.py",
    "cli",
    "defs/test_executors.py",
    "defs/test_instance.py",
    "defs/test_liveness.py",
    "defs/test_location.py",
    "defs/test_pull_requests.py",
    "defs/test_notify.py",
    "defs/test_queue.py",
    "defs/test_stack.py",
    "defs/test_stack_changes.py",
    "defs/test_stage.py",
    "defs/test_ticks.py",
    "defs/test_triggers.py",
    "docker",
    "end_to_end",
    "github/test_client.py",
    "hud/data/test_update.py",
    "hud/test_accessibility.py",
    "hud/test_browser.py",
    "hud/test_pages_on_tests.py",
    "images/test_docker_image.py",
    "instance",
    "notify/test_current.py",
    "notify/test_issues.py",
    "notify/test_story.py",
    "pool/kubernetes/test_cluster.py",
    "pool/kubernetes/test_examination.py",
    "pool/kubernetes/test_pool.py",
    "pool/test_contract.py",
    "pool/test_kills.py",
    "pool/test_outages.py",
    "pool/test_own_user.py",
    "pool/test_pytorch_suites.py",
    "pool/test_random_kills.py",
    "pull_requests/test_publish.py",
    "pull_requests/test_watched.py",
    "quality/test_current_missed.py",
    "rbe/test_bazel.py",
    "rbe/test_source_tree.py",
    "release",
    "relay/test_app_tokens.py",
    "relay/test_both_ends.py",
    "relay/test_callback_conformance.py",
    "relay/test_clickhouse_sink.py",
    "relay/test_conformance.py",
    "relay/test_delivery.py",
    "relay/test_forward.py",
    "relay/test_identity.py",
    "relay/test_kills.py",
    "relay/test_listening.py",
    "relay/test_public_defects.py",
    "relay/test_end_to_end.py",
    "relay/test_poll.py",
    "relay/test_pages_in_browser.py",
    "relay/test_pages_served.py",
    "relay/test_receive.py",
    "relay/test_report.py",
    "relay/test_results_store.py",
    "relay/test_sensors.py",
    "relay/test_sweep.py",
    "results/test_ingest.py",
    "results/test_questions.py",
    "results/test_replaced.py",
    "results/test_sql_sink.py",
    "results/test_store.py",
    "retention/test_docker_images.py",
    "rounds/test_disasters.py",
    "rounds/test_driver.py",
    "rounds/test_earlier.py",
    "runner/test_collect.py",
    "runner/test_facts.py",
    "runner/test_like_pytest.py",
    "runner/test_modes.py",
    "runner/test_probe.py",
    "runner/test_pytest_features.py",
    "runner/test_pythons.py",
    "runner/test_real_suites.py",
    "runner/test_wheel_modules.py",
    "runner/test_worker.py",
    "security",
    "stack",
    "source/test_changes.py",
    "source/test_checkout.py",
    "source/test_git.py",
    "source/test_revision.py",
    "steps",
    "storage/test_bucket.py",
    "storage/test_shared_folder.py",
    "storage/test_shared_lease.py",
    "storage/test_disk_faults.py",
    "test_backup.py",
    "test_dependencies.py",
    "test_json_logs.py",
    "test_machine.py",
    "test_preflight.py",
    "test_repair.py",
    "wheels/test_audit.py",
    "wheels/test_build.py",
    "wheels/test_front_end.py",
    "wheels/test_torch_wheel.py",
)
"""These start workers, servers, containers, builds or whole nightlies, or store much."""

NIGHTLY = (
    "end_to_end/test_causes_of_faults.py",
    "end_to_end/test_killed_on_engines.py",
    "end_to_end/test_random_kills.py",
    "end_to_end/test_rbe.py",
    "pool/test_pytorch_suites.py",
    "pool/test_random_kills.py",
    "relay/test_identity.py",
    "relay/test_kills.py",
    "reports",
    "results",
    "runner/test_facts.py",
    "runner/test_real_suites.py",
    "steps/test_trials.py",
    "test_dependencies.py",
)
"""These run longer when the variables are set that `make test-nightly` sets."""

LONG = (
    "end_to_end/test_bridges.py",
    "end_to_end/test_cancelled_bridges.py",
    "end_to_end/test_answers.py",
    "end_to_end/test_both_stacks.py",
    "end_to_end/test_compose.py",
    "end_to_end/test_confirm.py",
    "end_to_end/test_driver_update.py",
    "end_to_end/test_guide.py",
    "end_to_end/test_killed_on_engines.py",
    "end_to_end/test_quarantine.py",
    "end_to_end/test_random_kills.py",
    "end_to_end/test_released_images.py",
    "end_to_end/test_two_locations.py",
    "end_to_end/test_upstream.py",
    "wheels/test_front_end.py",
)
"""These take a minute or more each, and smaller tests show most of what they show: `make test-nightly` alone runs them."""

PROCESSES = (
    (
        "end_to_end/test_nightly.py",
        "end_to_end/test_rbe.py",
        "end_to_end/test_relayed_nightly.py",
        "end_to_end/test_reproduce.py",
        "end_to_end/test_webserver.py",
    ),
    ("end_to_end/test_both_stacks.py",),
    ("end_to_end/test_guide.py",),
    ("end_to_end/test_released_images.py",),
    ("end_to_end/test_resume.py",),
    ("end_to_end/test_stack.py",),
    ("end_to_end/test_stops_with_a_message.py",),
    ("end_to_end/test_ui.py",),
    ("end_to_end/test_upstream.py",),
    ("hud/test_accessibility.py",),
    ("hud/test_browser.py",),
    ("hud/test_pages_on_tests.py",),
    ("images/test_docker_image.py",),
    ("notify/test_story.py",),
    ("relay/test_pages_in_browser.py",),
    ("release/test_release.py",),
    ("security/test_secrets_hunt.py",),
    ("security/test_wrong_green.py",),
    ("wheels/test_front_end.py",),
)  # fmt: skip
"""Modules whose tests share a fixture that is expensive to make, or images of the Docker engine, which they also remove.

One process runs all tests of a group.
"""

EXPENSIVE = {"bench", "source_bench", "browser", "compilers"}
"""Those fixtures."""


def mark(item: pytest.Item) -> None:
    """Mark a test with its tiers. Raises `UsageError` when it has an expensive fixture and is in no group of `PROCESSES`."""
    if _is_in(item.nodeid, SLOW):
        item.add_marker(pytest.mark.slow)
    if _is_in(item.nodeid, LONG):
        item.add_marker(pytest.mark.long)
    if _is_in(item.nodeid, NIGHTLY):
        item.add_marker(pytest.mark.nightly)
    if EXPENSIVE & set(getattr(item, "fixturenames", ())) and _process_of(item.nodeid) == item.nodeid:
        raise pytest.UsageError(f"{item.nodeid} has an expensive fixture: add its module to PROCESSES in {__file__}")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Shares single tests among processes, except for those that must run in one.

    The marks `xdist_group` of pytest-xdist 3.8 would do that, but have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _process_of(nodeid)


def _process_of(nodeid: str) -> str:
    """Return a key that tests have in common that must run in one process."""
    return next((group[0] for group in PROCESSES if _is_in(nodeid, group)), nodeid)


def _is_in(nodeid: str, places: tuple[str, ...]) -> bool:
    return nodeid.startswith(tuple(f"accel_ci_tests/{place}{end}" for place in places for end in ("/", "::")))
