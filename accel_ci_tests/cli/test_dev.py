"""`accel-ci dev` as a person uses it: the UI and the HUD of one data folder, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from accel_ci.config.settings import Project
from accel_ci.defs.quality import hud_links
from accel_ci.workspace import Workspace
from accel_ci_tests.fixtures.graphql_server import Server, free_port
from accel_ci_tests.fixtures.project import Run


@pytest.mark.timeout(900)
def test_the_ui_and_the_hud_are_served_once(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project()
    workspace = Workspace(project)
    workspace.hud.mkdir(parents=True)
    (workspace.hud / "index.html").write_text("the HUD")
    assert hud_links(workspace)["page"].value == "http://127.0.0.1:3001/"
    port, hud_port = free_port(), free_port()
    own = ("ACCEL_CI_CONFIG", "ACCEL_CI_HOME", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-m", "accel_ci.cli", "dev", "--port", str(port), "--hud-port", str(hud_port)]
    server = Server(command, port, project.root, environment)
    try:
        known = json.loads(workspace.dev_file.read_text())
        assert known == {"ui": f"http://127.0.0.1:{port}", "hud": f"http://127.0.0.1:{hud_port}/"}
        assert httpx.get(known["hud"]).text == "the HUD"
        assert hud_links(workspace)["page"].value == known["hud"]
        again = accel_ci("dev", "--port", str(free_port()))
        assert again.returncode == 2
        assert again.stderr.count("\n") == 1
        assert f"already runs on {project.home} at http://127.0.0.1:{port}" in again.stderr
    finally:
        server.stop()
    assert " DEBUG " not in server.log
    assert "Warning" not in server.log
    with pytest.raises(httpx.ConnectError):
        httpx.get(known["hud"])


def test_a_claim_ends_with_its_process_however_that_ends(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    project = make_project()
    file = Workspace(project).dev_file
    program = f"""
import time; from pathlib import Path; from accel_ci.storage.dev_file import *
publish(claim(Path({str(file)!r})), DevAddresses("http://ui", "http://hud"))
print("claimed", flush=True); time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        assert "at http://ui; use that one" in accel_ci("dev").stderr
        holder.send_signal(signal.SIGKILL)
    claimed = subprocess.run(
        [sys.executable, "-c", program.replace("time.sleep(600)", "0")], capture_output=True, timeout=60
    )
    assert claimed.stdout == b"claimed\n", claimed.stderr
