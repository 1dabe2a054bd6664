"""The tiers of tests, by folder or module: `make test-fast`, `make test` and `make test-nightly`.

A test belongs to `make test-fast` unless its place is in `SLOW`.
"""

from __future__ import annotations

import pytest

SLOW = (
    "cli", "defs/test_stage.py", "defs/test_triggers.py", "docker", "end_to_end", "hud/test_browser.py",
    "images/test_docker_image.py", "instance", "pool/kubernetes/test_pool.py", "pool/test_contract.py",
    "pool/test_kills.py", "pool/test_outages.py", "pool/test_random_kills.py", "rbe/test_bazel.py",
    "results/test_ingest.py", "results/test_questions.py", "results/test_replaced.py", "results/test_sql_sink.py",
    "results/test_store.py", "retention/test_docker_images.py", "rounds/test_driver.py", "runner/test_collect.py",
    "runner/test_pytest_features.py", "runner/test_pythons.py", "runner/test_worker.py", "steps", "storage/test_bucket.py",
    "test_dependencies.py",
    "wheels/test_audit.py", "wheels/test_build.py", "wheels/test_front_end.py",
)  # fmt: skip
"""These start workers, servers, containers, builds or whole nightlies, or store much."""

NIGHTLY = ("end_to_end/test_rbe.py", "pool/test_random_kills.py", "reports", "results", "test_dependencies.py")
"""These run longer when the variables are set that `make test-nightly` sets."""

SHARED = ("bench", "source_bench", "browser", "compilers")
"""Fixtures that are too expensive to make in each process: the tests that use one run in the same process."""


def mark(item: pytest.Item) -> None:
    """Mark a test with its tiers, and with the group of tests that share a process."""
    if _is_in(item, SLOW):
        item.add_marker(pytest.mark.slow)
    if _is_in(item, NIGHTLY):
        item.add_marker(pytest.mark.nightly)
    for fixture in SHARED:
        if fixture in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(fixture))


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return item.nodeid.startswith(tuple(f"accel_ci_tests/{place}{end}" for place in places for end in ("/", "::")))
