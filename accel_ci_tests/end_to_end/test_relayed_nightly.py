"""The nightly of the example backend is reported to the relay's server, and stands on its backend's page there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from accel_ci.model import Build
from accel_ci_tests.fixtures.bench import Bench
from accel_ci_tests.fixtures.github_server import github_server
from accel_ci_tests.fixtures.oidc_issuer import oidc_issuer
from accel_ci_tests.fixtures.processes import wait_for
from accel_ci_tests.fixtures.relay_server import UPSTREAM, RelayServer

BACKEND = "team/backend"
SUITES = {"smoke", "integration", "pytorch"}


def test_from_the_nightly_to_the_page_of_the_backend(bench: Bench, faulty_nightly: Build, tmp_path: Path) -> None:
    with github_server() as github, oidc_issuer() as issuer:
        relay = RelayServer(
            tmp_path, github.url, f"L2: [{BACKEND}]\n",
            issuers=[{"issuer": issuer.url, "identity": "repository"}], pages={"every_s": 0.5},
        )  # fmt: skip
        (bench.folder / "token").write_text(issuer.token(BACKEND))
        address = relay_address(relay)
        bench.configure(
            relay={
                "repository": UPSTREAM, "variants": [faulty_nightly.variant], "nightly": True, "token_file": "token",
                "callbacks": [f"{address}/github/callback"],
            }
        )  # fmt: skip
        try:
            assert "completed: taken" in bench.accel_ci("relay", "report", faulty_nightly.name)
            assert "nothing is due" in bench.accel_ci("relay", "report", faulty_nightly.name)
            wait_for(lambda: recent(address).keys() >= SUITES)
            jobs = recent(address)
        finally:
            bench.configure()
            relay.stop()
    assert {jobs[suite]["event"] for suite in SUITES} == {"nightly"}
    assert (jobs["smoke"]["state"]["words"], jobs["pytorch"]["state"]["words"]) == ("passed", "failed")
    failed = {failure["test"].rpartition("::")[2] for failure in jobs["pytorch"]["failures"]}
    assert {"test_op[tan]", "test_op[erfinv]", "test_op[to_sparse]"} <= failed
    assert "test_op[add]" not in failed
    assert len({job["head_sha"] for job in jobs.values()}) == 1


def relay_address(relay: RelayServer) -> str:
    """Start the server; return its address."""
    relay.start()
    return relay.url.removesuffix("/github/webhook")


def recent(address: str) -> dict[str, dict[str, Any]]:
    """The jobs on the page of the backend, by suite; none before it is there. A source build adds its suite."""
    answer = httpx.get(f"{address}/hud/backends/{BACKEND.replace('/', '~')}.json", timeout=30)
    found = answer.json()["recent"] if answer.status_code == 200 else []
    return {job["job"].partition("~")[2]: job for job in found}
