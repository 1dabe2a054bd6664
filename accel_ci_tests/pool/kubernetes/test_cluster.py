"""The API server of a cluster that is away for a moment or refuses, played by an HTTP server."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError
from accel_ci.pool.kubernetes.cluster import Cluster

ANSWERS: list[tuple[int, object]] = []


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    do_POST = do_DELETE = do_PATCH = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "tests"}}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
            "users": [{"name": "u", "user": {}}], "contexts": [context], "current-context": "c",
        }  # fmt: skip
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        ANSWERS.clear()
        yield Cluster(KubernetesPoolSettings(kind="kubernetes", resource="example.com/card"))
        server.shutdown()
    assert ANSWERS == []


def test_a_server_that_is_away_is_asked_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    ANSWERS.extend([(503, {}), (200, {"items": [{"metadata": {"name": "p"}}]})])
    with caplog.at_level(logging.WARNING, "accel_ci.pool"):
        assert cluster.pods("a=b") == [{"metadata": {"name": "p"}}]
    [record] = caplog.records
    assert "did not list pods (Service Unavailable); next try in 0.5 s, giving up in 300 s" in record.getMessage()


def test_what_is_absent_or_there_already_is_no_error(cluster: Cluster) -> None:
    ANSWERS.extend([(404, {}), (409, {}), (404, {}), (404, {}), (409, {}), (200, {"kind": "Job"})])
    assert cluster.job("j") is None
    assert not cluster.create_job({})
    assert not cluster.label_job("j", {"a": "b"})
    cluster.delete_pod("p")
    assert not cluster.delete_job("j", {"metadata": {"name": "j", "uid": "1", "resourceVersion": "2"}})
    assert cluster.job("j") == {"kind": "Job"}


def test_a_refusal_is_an_error_with_advice(cluster: Cluster) -> None:
    ANSWERS.append((403, {"message": "jobs is forbidden"}))
    message = "refused to create a Job in the namespace tests: jobs is forbidden; give the service account the rights"
    with pytest.raises(PoolError, match=message):
        cluster.create_job({})
