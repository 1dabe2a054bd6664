"""The checks at the start of a run: on real engines where there are any, and on servers that answer as faulty ones do."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pytest

from accel_ci.config.pool_settings import DockerPoolSettings, KubernetesPoolSettings
from accel_ci.config.settings import Project, Rbe
from accel_ci.docker.image import check_image, check_registry
from accel_ci.errors import AccelCiError, BuildError, PoolError
from accel_ci.pool.docker.pool import DockerPool
from accel_ci.pool.kubernetes import cluster as cluster_module
from accel_ci.pool.kubernetes.cluster import Cluster
from accel_ci.pool.kubernetes.pool import KubernetesPool
from accel_ci.rbe.remote import check_remote
from accel_ci.rounds.round_bucket import RoundStore
from accel_ci.storage.s3 import check_bucket, s3_session
from accel_ci_tests.fixtures.bench import make_bench
from accel_ci_tests.fixtures.cluster_pool import Gate, cluster_settings
from accel_ci_tests.fixtures.project import Run
from accel_ci_tests.fixtures.stored_attempts import NEEDED, real_s3
from accel_ci_tests.pool.flaky_server import flaky_server

NOWHERE = "127.0.0.1:9"


# Stores.


@real_s3
def test_a_bucket_that_works_and_those_that_do_not() -> None:
    endpoint, bucket, access, secret = (os.environ[name] for name in NEEDED)
    session = s3_session(access, secret)
    assert check_bucket(session, endpoint, bucket, "checked") == f"bucket {bucket} at {endpoint}"
    client = session.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    assert "Contents" not in client.list_objects_v2(Bucket=bucket, Prefix="checked/.check-"), "nothing is left behind"
    for broken, place, problem in (
        (s3_session(access, "wrong-secret"), (endpoint, bucket), "credentials"),
        (session, (endpoint, "no-such-bucket-here"), "no-such-bucket-here"),
        (session, (f"http://{NOWHERE}", bucket), "Could not connect"),
    ):
        with pytest.raises(AccelCiError, match=problem) as raised:
            check_bucket(broken, *place, "checked")
        assert "wrong-secret" not in str(raised.value)
    with flaky_server(endpoint) as server:
        server.ignore_conditions = True
        with pytest.raises(AccelCiError, match=r"ignores IfNoneMatch and IfMatch of PUT"):
            check_bucket(session, server.url, bucket, "checked")


# Docker.


def docker_pool(image: str | None = None, **settings: Any) -> DockerPool:
    return DockerPool(DockerPoolSettings(kind="docker", card_environment="CARD", image=image, **settings))


def test_a_docker_pool_whose_parts_are_missing(base: str) -> None:
    assert f"with {base}" in docker_pool(base).check()
    assert docker_pool(base, devices=["/dev/null", "/dev/zero:/dev/card{card}"]).check()
    for pool, problem in (
        (docker_pool("no-such-image:1"), r"the Docker engine has no image 'no-such-image:1'; `docker pull` it"),
        (docker_pool(base, network="no-such-network"), r"no network 'no-such-network'; make it, or fix pool\.network"),
        (
            docker_pool(base, cards=5, devices=["/dev/no-card{card}"]),
            r"no-card0, .*no-card2 and 2 more of pool\.devices",
        ),
    ):
        with pytest.raises(PoolError, match=problem):
            pool.check()


def test_an_engine_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(PoolError, match="no Docker engine answers at"):
        docker_pool().check()


def test_images_and_registries_are_looked_up(base: str) -> None:
    check_image(base)
    registry = base.partition("/")[0]
    check_registry(f"{registry}/never-pushed")
    with pytest.raises(BuildError, match="see that the registry has it and lets you in"):
        check_image(f"{registry}/never-pushed@sha256:{'0' * 64}")
    with pytest.raises(BuildError, match=r"see that image\.registry is right"):
        check_registry(f"{NOWHERE}/never-pushed")


# Kubernetes.


@contextmanager
def api_server(answers: dict[str, tuple[int, dict[str, Any]]]) -> Iterator[str]:
    """An API server with fixed answers, by the last part of the path; yields its URL."""

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = answers[self.path.partition("?")[0].rpartition("/")[2]]
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def use_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have KUBECONFIG name an API server."""

    def use(url: str) -> None:
        named = {"clusters": [{"name": "a", "cluster": {"server": url}}], "users": [{"name": "a", "user": {}}]}
        context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "tests"}}
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps({**named, "contexts": [context], "current-context": "a"}))
        monkeypatch.setenv("KUBECONFIG", str(path))

    return use


def cluster_pool(widest: int = 1, **settings: Any) -> KubernetesPool:
    options = {"kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel", "bucket": {"bucket": "rounds"}}
    made = KubernetesPoolSettings.model_validate({**options, **settings})
    return KubernetesPool(made, RoundStore("rounds"), "toy", widest=widest)


def node(cards: int, **labels: str) -> dict[str, Any]:
    allocatable = {"cpu": "4", **({"example.com/accel": str(cards)} if cards else {})}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": allocatable}}


def test_a_resource_that_no_node_has_is_named_at_once(use_api_server: Callable[[str], None]) -> None:
    nodes = {"items": [node(0), node(2, pool="b"), node(4, pool="a")]}
    with api_server({"jobs": (201, {}), "nodes": (200, nodes)}) as url:
        use_api_server(url)
        assert cluster_pool(4).check() == "namespace tests; 6 example.com/accel on 2 node(s)"
        assert "2 example.com/accel on 1 node(s)" in cluster_pool(2, node_selector={"pool": "b"}).check()
        for pool, problem in (
            (cluster_pool(5), r"no node has 5 example\.com/accel, of 3 node\(s\) \(4 at most\)"),
            (cluster_pool(resource="example.com/other"), r"no node has 1 example\.com/other, of 3 node\(s\) \(none\)"),
            (
                cluster_pool(3, node_selector={"pool": "b"}),
                r"that pool\.node_selector matches has 3 .* \(2 at most\)",
            ),
        ):
            with pytest.raises(PoolError, match=problem):
                pool.check()
        assert cluster_pool(5, nodes_on_demand=True).check()


def test_a_cluster_that_refuses(use_api_server: Callable[[str], None]) -> None:
    refused = {"kind": "Status", "message": "jobs.batch is forbidden: User x cannot create jobs"}
    answers = {"jobs": (403, refused), "nodes": (403, {})}
    with api_server(answers) as url:
        use_api_server(url)
        with pytest.raises(PoolError, match=r"refused to create a Job in the namespace tests: jobs.batch is forbidden"):
            cluster_pool().check()
        answers["jobs"] = (401, {"message": "Unauthorized"})
        with pytest.raises(PoolError, match="the credentials of KUBECONFIG are not valid"):
            cluster_pool().check()
        answers["jobs"] = (201, {})
        assert "its account may not list nodes" in cluster_pool().check(), "a Role of one namespace cannot allow that"


def test_an_api_server_that_is_away_is_reported_and_not_waited_for_twice(
    use_api_server: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_api_server(f"http://{NOWHERE}")
    monkeypatch.setattr(cluster_module, "_SECOND_PATIENCE_S", 0.0)
    away = Cluster(cluster_pool()._settings, patience_s=2)
    with caplog.at_level(logging.WARNING, "accel_ci"):
        with pytest.raises(PoolError, match=f"API server at http://{NOWHERE} is away"):
            away.jobs("a=b")
        lines = [record.getMessage() for record in caplog.records if "next try in" in record.getMessage()]
        assert lines
        assert all(f"at http://{NOWHERE} did not list Jobs" in line and "giving up in" in line for line in lines)
        caplog.clear()
        with pytest.raises(PoolError, match="is away"):  # the clean-up
            away.delete_job("a")
        assert "next try in" not in caplog.text


def test_a_cluster_without_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(PoolError, match=r"no cluster is configured .* set KUBECONFIG"):
        cluster_pool().check()


def test_a_real_cluster(api_server_gate: Gate) -> None:
    settings = cluster_settings()
    store = RoundStore("rounds")
    answer = KubernetesPool(settings, store, "toy").check()
    if "may not list nodes" not in answer:
        assert settings.resource in answer
        with pytest.raises(PoolError, match=r"no node has 1 example\.com/no-such-card"):
            KubernetesPool(settings.model_copy(update={"resource": "example.com/no-such-card"}), store, "toy").check()
    with pytest.raises(PoolError, match="no-such-namespace"):
        KubernetesPool(settings.model_copy(update={"namespace": "no-such-namespace"}), store, "toy").check()
    api_server_gate.shut()
    with pytest.raises(PoolError, match=f"API server at https://127.0.0.1:{api_server_gate.port} is away"):
        KubernetesPool(settings, store, "toy").check()


# Remote execution.


def rbe(**settings: Any) -> Rbe:
    return Rbe.model_validate({"targets": ["//..."], **settings})


def test_remote_execution_that_answers() -> None:
    if not (endpoint := os.environ.get("ACCEL_CI_RBE_ENDPOINT")):
        pytest.skip("no remote execution: ACCEL_CI_RBE_ENDPOINT is not set")
    assert check_remote(rbe(executor=endpoint, cache=endpoint), {"x-key": "a"}) == f"{endpoint} answers"


def test_remote_execution_that_is_away_or_refuses(tmp_path: Path) -> None:
    assert check_remote(rbe(), {}) is None
    for endpoint in (f"grpc://{NOWHERE}", f"grpcs://{NOWHERE}", f"https://{NOWHERE}/cache", f"unix:{tmp_path}/none"):
        with pytest.raises(BuildError, match=r"rbe\.cache: .* does not answer \(.*\); see that it runs"):
            check_remote(rbe(cache=endpoint), {})

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        if dict(context.invocation_metadata()).get("x-key") != "right":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        assert request == b"\x0a\x04main"
        return b""

    handler = grpc.unary_unary_rpc_method_handler(refuse)
    service = "build.bazel.remote.execution.v2.Capabilities"
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"GetCapabilities": handler}),))
    endpoint = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        settings = rbe(executor=endpoint, instance_name="main")
        assert check_remote(settings, {"X-Key": "right"}) == f"{endpoint} answers"
        with pytest.raises(BuildError, match="does not take the credentials; look at the variables") as raised:
            check_remote(settings, {"X-Key": "wrong-secret"})
        assert "wrong-secret" not in str(raised.value)
    finally:
        server.stop(None)


# Runs.


def test_a_run_that_cannot_work_stops_before_it_has_made_or_removed_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    bench = make_bench(tmp_path)
    bucket = {"bucket": "rounds", "endpoint": f"http://{NOWHERE}"}
    bench.configure(
        pool={"kind": "kubernetes", "image": "toy:1", "resource": "example.com/accel", "bucket": bucket, "cards": 2}
    )
    [variant] = bench.project.settings.variants
    manifest = bench.project.home / "builds" / "manual-a" / variant.name / "wheel.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    output = bench.accel_ci("run", "manual", "--name", "a", status=1)
    assert "wheel: stores: bucket rounds at http://127.0.0.1:9: " in output
    assert "\npool: no cluster is configured" in output
    assert manifest.read_text() == "{}", "an earlier result stays"


def test_doctor_makes_the_same_checks(accel_ci: Run, make_project: Callable[..., Project]) -> None:
    pool = {"kind": "docker", "card_environment": "CARD", "image": "no-such-image:1", "network": "none"}
    make_project(pool=pool, rbe={"targets": ["//..."], "executor": f"grpc://{NOWHERE}", "headers": {"x": "NO_SUCH_KEY"}})
    pieces = {piece["name"]: piece for piece in json.loads(accel_ci("doctor", "--json").stdout)}
    assert not pieces["pool"]["usable"]
    assert "NO_SUCH_KEY is not set" in pieces["Bazel"]["state"]
    assert pieces["stores"]["usable"]
