"""`accel-ci dev` as a person uses it: the UI and the HUD of one data folder, once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import httpx
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.instance import open_instance
from accel_ci.defs.metadata import link
from accel_ci.defs.quality import hud_links
from accel_ci.errors import AccelCiError
from accel_ci.storage.dev_file import claim
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.project import Run


def shown_link(server: Server) -> str:
    """The address that the page of the ledger links to."""
    question = """{ assetOrError(assetKey: {path: ["ledger"]}) { ... on Asset { assetMaterializations {
        metadataEntries { ... on UrlMetadataEntry { url } } } } } }"""
    [made] = server.ask(question)["assetOrError"]["assetMaterializations"]
    [entry] = made["metadataEntries"]
    return str(entry["url"])


@pytest.mark.timeout(900)
def test_the_ui_and_the_hud_are_served_once(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project()
    workspace = Workspace(project)
    workspace.hud.mkdir(parents=True)
    (workspace.hud / "index.html").write_text("the HUD")
    assert hud_links(workspace)["page"].value == "http://127.0.0.1:3001/"
    log = workspace.artifacts.put_bytes(b"a log", "test.log")
    assert link(workspace, log).value == str(workspace.artifacts.path(log))
    port, hud_port = free_port(), free_port()
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-m", "accel_ci.cli", "dev", "--port", str(port), "--hud-port", str(hud_port)]
    server = Server(command, port, project.root, environment)
    try:
        known = json.loads(workspace.dev_file.read_text())
        own = known.pop("process")
        assert known == {"ui": f"http://127.0.0.1:{port}", "hud": f"http://127.0.0.1:{hud_port}/"}
        assert httpx.get(known["hud"]).text == "the HUD"
        assert hud_links(workspace)["page"].value == known["hud"]
        with open_instance(project) as instance:
            made = dg.AssetMaterialization("ledger", metadata={"log": link(workspace, log)})
            instance.report_runless_asset_event(made)
        assert httpx.get(shown_link(server)).text == "a log"
        again = accel_ci("dev", "--port", str(free_port()))
        assert again.returncode == 2
        assert again.stderr.count("\n") == 1
        assert f"already runs on {project.home} at http://127.0.0.1:{port}" in again.stderr
        os.kill(own, signal.SIGKILL)
        os.close(claim(workspace.dev_file))  # waits for the end of Dagster
        with pytest.raises(httpx.ConnectError):
            httpx.get(known["ui"])
    finally:
        server.stop()
    assert " DEBUG " not in server.log
    assert "Warning" not in server.log
    with pytest.raises(httpx.ConnectError):
        httpx.get(known["hud"])


CLAIMING = """
import os, signal, subprocess, sys, time
from pathlib import Path
from accel_ci.process.with_parent import with_parent
from accel_ci.storage.dev_file import DevAddresses, claim, publish
claimed = claim(Path(sys.argv[1]))
publish(claimed, DevAddresses("http://ui", "http://hud", os.getpid()))
child = "import signal, time; " + sys.argv[2] + "; print('ready', flush=True); time.sleep(600)"
subprocess.run(with_parent([sys.executable, "-c", child]), pass_fds=(claimed,))"""


@contextmanager
def claiming(file: Path, child: str = "pass") -> Iterator[int]:
    """A process that has claimed the file, as its child has: the id."""
    with subprocess.Popen([sys.executable, "-c", CLAIMING, str(file), child], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        try:
            yield holder.pid
        finally:
            holder.kill()


def test_a_claim_ends_with_its_process_however_that_ends(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    file = Workspace(make_project()).dev_file
    with claiming(file) as process:
        refused = accel_ci("dev")
        assert re.search(rf"at http://ui; use that one, or end it first \(kill .*\b{process}\b", refused.stderr)
        os.kill(process, signal.SIGKILL)
        os.close(claim(file))


def test_what_does_not_end_with_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dev.json"
    with claiming(file, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        os.kill(process, signal.SIGKILL)
        with pytest.raises(AccelCiError, match=r"still runs on .* at http://ui, though .* has ended; kill \d+$") as refused:
            claim(file, ends_within_s=1.0)
        os.kill(int(str(refused.value).split()[-1]), signal.SIGKILL)
        os.close(claim(file))
