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
            wait_for(lambda: len(recent(address)) == 3)
            jobs = recent(address)
        finally:
            bench.configure()
            relay.stop()
    found = {job["job"].partition("~")[2]: (job["state"]["words"], job["event"]) for job in jobs}
    assert found == {suite: (found[suite][0], "nightly") for suite in ("smoke", "integration", "pytorch")}
    assert (found["smoke"][0], found["pytorch"][0]) == ("passed", "failed")
    (pytorch,) = (job for job in jobs if job["job"].endswith("~pytorch"))
    failed = {failure["test"].rpartition("::")[2] for failure in pytorch["failures"]}
    assert {"test_op[tan]", "test_op[erfinv]", "test_op[to_sparse]"} <= failed
    assert "test_op[add]" not in failed
    assert len({job["head_sha"] for job in jobs}) == 1


def relay_address(relay: RelayServer) -> str:
    """Start the server; return its address."""
    relay.start()
    return relay.url.removesuffix("/github/webhook")


def recent(address: str) -> list[dict[str, Any]]:
    """The jobs on the page of the backend; none before it is there."""
    answer = httpx.get(f"{address}/hud/backends/{BACKEND.replace('/', '~')}.json", timeout=30)
    return list(answer.json()["recent"]) if answer.status_code == 200 else []
