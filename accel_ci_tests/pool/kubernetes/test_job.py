"""The manifest of a Job, what the cluster says of pods, and what may be laid over: no cluster is needed."""

from __future__ import annotations

import ast
import copy
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml

from accel_ci.config.pod_template import overlay, template_mistakes
from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.pool.kubernetes.job import JobRequest, job_manifest, job_name, label
from accel_ci.pool.kubernetes.pod_entry import ask
from accel_ci.pool.kubernetes.pods import job_end, pod_state
from accel_ci.rounds.engine import WorkerEnd
from accel_ci_tests.fixtures.checkout import ROOT

REQUEST = JobRequest(
    "job-1", "toy", "round-a", 4, 2, "https://s3.example.com/x?X-Amz-Signature=abc", "/srv/sources", (), {"A": "$(B) $c"},
    "run-1", "r/v/device", "digest",
)  # fmt: skip


def settings(**more: Any) -> KubernetesPoolSettings:
    return KubernetesPoolSettings(kind="kubernetes", image="example.org/image:1", resource="example.com/accel", **more)


def pod_spec(**more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = job_manifest(settings(**more), REQUEST)["spec"]["template"]["spec"]
    return spec


def test_a_job_is_a_work_queue_that_ends() -> None:
    job = job_manifest(settings(queue_seconds=60, round_seconds=600, keep_seconds=120), REQUEST)
    spec = job["spec"]
    assert spec["parallelism"] == 4
    assert "completions" not in spec
    assert spec["backoffLimit"] >= 2 * 4
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (660, 120)
    assert job["metadata"]["labels"]["accel-ci/run"] == "run-1"
    assert job["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "accel-ci"
    assert spec["template"]["metadata"]["labels"]["accel-ci/round"] == "round-a"
    json.dumps(job)


def test_a_pod_has_no_privileges_and_no_credentials() -> None:
    spec = pod_spec()
    [worker] = spec["containers"]
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert worker["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not {"hostNetwork", "hostPID", "hostIPC", "privileged"} & set(spec)
    text = json.dumps(spec)
    assert "X-Amz-Signature" in text  # the one signed URL, and nothing else that opens anything
    assert "secretKeyRef" not in text
    assert {"name": "A", "value": "$$(B) $$c"} in worker["env"]


def test_a_pod_asks_for_its_cards_and_has_its_folders() -> None:
    [worker] = pod_spec(cpu="2", memory="4Gi", shm_size="2Gi")["containers"]
    assert worker["resources"]["limits"] == {"example.com/accel": "2", "memory": "4Gi"}
    assert worker["resources"]["requests"] == {"example.com/accel": "2", "memory": "4Gi", "cpu": "2"}
    assert [mount["mountPath"] for mount in worker["volumeMounts"]] == ["/accel-ci", "/srv/sources", "/dev/shm"]


def test_only_the_container_before_the_worker_can_write_the_sources() -> None:
    template = {"spec": {"initContainers": [{"name": "mine"}], "containers": [{"name": "worker", "env": [{"name": "CA"}]}]}}
    spec = pod_spec(pod_template=template)
    [mine, before], [worker] = spec["initContainers"], spec["containers"]
    assert mine == {"name": "mine"}
    writable = [
        {mount["mountPath"] for mount in each["volumeMounts"] if not mount.get("readOnly")} for each in (before, worker)
    ]
    assert writable == [{"/accel-ci", "/srv/sources", "/dev/shm"}, {"/accel-ci", "/dev/shm"}]
    assert [entry["value"] for entry in before["env"] if entry["name"] == "ACCEL_CI_PART"] == ["sources"]
    assert not [entry for entry in worker["env"] if entry["name"] == "ACCEL_CI_PART"]
    assert {"name": "CA"} in before["env"], "what the template gives the worker to reach the store"
    assert "example.com/accel" not in before["resources"]["limits"]
    assert {name: before[name] for name in ("image", "command", "securityContext")} == {
        name: worker[name] for name in ("image", "command", "securityContext")
    }


@pytest.mark.parametrize(
    ("state", "phase", "found"),
    [
        ({"running": {}}, "Pending", ("PodInitializing", None)),
        ({"terminated": {"exitCode": 0}}, "Running", (None, None)),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, "Pending",
         ("ImagePullBackOff: no such image", None)),
        ({"terminated": {"exitCode": 1, "reason": "Error", "message": "the store refused the sources"}}, "Failed",
         (None, WorkerEnd("failed", "Error (exit code 1)"))),
    ],
)  # fmt: skip
def test_what_the_container_of_the_sources_does_is_told(
    state: dict[str, Any], phase: str, found: tuple[str | None, WorkerEnd | None]
) -> None:
    waiting = {} if phase == "Running" else {"waiting": {"reason": "PodInitializing"}}
    status = {
        "phase": phase,
        "initContainerStatuses": [{"name": "accel-ci-sources", "state": state}],
        "containerStatuses": [{"name": "worker", "state": waiting}],
    }
    seen = pod_state({"metadata": {"name": "p"}, "status": status})
    assert (seen.waits, seen.end) == found
    assert seen.log_tail == state.get("terminated", {}).get("message", "")


def test_where_pods_go_and_how() -> None:
    spec = pod_spec(
        node_selector={"zone": "a"}, runtime_class="kata", priority_class="low", service_account="tests",
        image_pull_secret="registry", host_network=True, tolerations=[{"key": "card", "effect": "NoSchedule"}],
    )  # fmt: skip
    assert spec["nodeSelector"] == {"zone": "a"}
    assert (spec["runtimeClassName"], spec["priorityClassName"], spec["serviceAccountName"]) == ("kata", "low", "tests")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["hostNetwork"] is True
    assert spec["tolerations"] == [{"key": "card", "operator": "Exists", "effect": "NoSchedule"}]
    job = job_manifest(settings(queue="cards"), REQUEST)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "cards"


def test_a_variable_or_volume_of_the_template_has_one_source() -> None:
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    template = {
        "spec": {
            "containers": [{"name": "worker", "env": [{"name": "A", "valueFrom": secret}]}],
            "volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}],
        }
    }
    made = job_manifest(settings(pod_template=template), REQUEST)["spec"]["template"]["spec"]
    assert [entry for entry in made["containers"][0]["env"] if entry["name"] == "A"] == [{"name": "A", "valueFrom": secret}]
    assert [volume for volume in made["volumes"] if volume["name"] == "shm"] == template["spec"]["volumes"]


def test_a_pod_asks_again_when_an_answer_breaks_off() -> None:
    lengths = [9, 7]

    class Breaking(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(lengths.pop(0)))
            self.end_headers()
            self.wfile.write(b"sources")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Breaking) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert ask(f"http://127.0.0.1:{server.server_address[1]}", "sources") == b"sources"
        server.shutdown()
    assert lengths == []


def test_a_template_is_laid_over() -> None:
    template = {
        "metadata": {"labels": {"team": "mine"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "dnsPolicy": "None",
            "containers": [
                {
                    "name": "worker",
                    "env": [{"name": "A", "value": "mine"}, {"name": "B", "value": "b"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "resources": {"limits": {"hugepages-2Mi": "64Mi"}},
                }
            ],
            "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        },
    }
    assert not list(template_mistakes(template))
    before = copy.deepcopy(template)
    job = job_manifest(settings(pod_template=template, tolerations=[{"key": "card"}]), REQUEST)
    assert template == before
    made = job["spec"]["template"]
    [worker] = made["spec"]["containers"]
    assert made["metadata"]["labels"]["team"] == "mine"
    assert made["metadata"]["labels"]["accel-ci/round"] == "round-a"
    assert len(made["spec"]["tolerations"]) == 2
    assert [entry["value"] for entry in worker["env"] if entry["name"] in ("A", "B")] == ["mine", "b"]
    assert worker["image"] == "example.org/image:1"
    assert worker["resources"]["limits"] == {"example.com/accel": "2", "hugepages-2Mi": "64Mi"}
    assert worker["volumeMounts"][-1] == {"name": "data", "mountPath": "/data"}
    assert [volume["name"] for volume in made["spec"]["volumes"]][-1] == "data"


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ({"kind": "Pod"}, ("kind",)),
        ({"spec": []}, ("spec",)),
        ({"metadata": {"name": "x"}}, ("metadata", "name")),
        ({"metadata": {"labels": {"a": 1}}}, ("metadata", "labels")),
        ({"metadata": {"labels": {"accel-ci/run": "x"}}}, ("metadata", "labels", "accel-ci/run")),
        ({"spec": {"restartPolicy": "Always"}}, ("spec", "restartPolicy")),
        ({"spec": {"automountServiceAccountToken": True}}, ("spec", "automountServiceAccountToken")),
        ({"spec": {"containers": {"name": "worker"}}}, ()),
        ({"spec": {"containers": [{"name": "sidecar"}]}}, ("spec", "containers", 0)),
        ({"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}, ("spec", "containers", 0, "command")),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, ("spec", "volumes", 0)),
    ],
)
def test_mistakes_of_a_template_have_a_place(template: dict[str, Any], place: tuple[str | int, ...]) -> None:
    found = [where for where, _ in template_mistakes(template)]
    assert found == ([place] if place else [("spec", "containers")])


def test_laying_over() -> None:
    assert overlay({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": 4}) == {"a": {"b": 1, "c": 3}, "d": 4}
    assert overlay({"x": [1]}, {"x": [2]}) == {"x": [2]}


def test_names() -> None:
    assert job_name("toy", "r/v/device", "round-1") == job_name("toy", "r/v/device", "round-1")
    names = {
        job_name(p, r, n) for p in ("toy", "other") for r in ("a/v/device", "b/v/device") for n in ("round-1", "round-2")
    }
    assert len(names) == 8
    assert all(len(name) <= 52 for name in names)  # pods add to it
    assert label("nightly-2026 / x" * 9 + "-") == "nightly-2026-x" * 4 + "nightly"
    assert label("a" * 62 + " b") == "a" * 62
    assert label("é/~") == ""


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "creationTimestamp": "2026-11-27T12:00:00Z"}, "status": status}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "worker", "state": state}]


@pytest.mark.parametrize(
    ("status", "waits", "end"),
    [
        ({"phase": "Pending"}, "Pending", None),
        ({"phase": "Running", "containerStatuses": container(running={})}, None, None),
        (
            {"phase": "Pending", "containerStatuses": container(waiting={"reason": "ContainerCreating"})},
            "ContainerCreating",
            None,
        ),
        (
            {"phase": "Pending", "containerStatuses": container(waiting={"reason": "ErrImagePull", "message": "no\nroute"})},
            "ErrImagePull: no route",
            None,
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
                ],
            },
            "Unschedulable: 0/1 nodes",
            None,
        ),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"reason": "OOMKilled", "exitCode": 137})},
            None,
            WorkerEnd("out_of_memory", "OOMKilled (signal 9)"),
        ),
        (
            {"phase": "Succeeded", "containerStatuses": container(terminated={"reason": "OOMKilled", "exitCode": 0})},
            None,
            WorkerEnd("finished", "Completed"),
        ),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"reason": "Error", "exitCode": 1})},
            None,
            WorkerEnd("failed", "Error (exit code 1)"),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            None,
            WorkerEnd("removed", "Evicted: low on memory"),
        ),
        (
            {"phase": "Running", "reason": "NodeLost", "containerStatuses": container(running={})},
            None,
            WorkerEnd("removed", "NodeLost"),
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, None, WorkerEnd("deadline", "DeadlineExceeded")),
        (
            {"phase": "Failed", "containerStatuses": container(terminated={"reason": "Error", "exitCode": 143})},
            None,
            WorkerEnd("killed", "Error (signal 15)"),
        ),
        ({"phase": "Failed"}, None, WorkerEnd("failed", "Failed")),
        ({"phase": "Succeeded"}, None, WorkerEnd("finished", "Succeeded")),
    ],
)
def test_the_state_of_a_pod(status: dict[str, Any], waits: str | None, end: WorkerEnd | None) -> None:
    state = pod_state(pod(**status))
    assert (state.waits, state.end) == (waits, end)


def test_a_pod_that_somebody_deletes() -> None:
    gone = pod(phase="Failed", containerStatuses=container(terminated={"reason": "Error", "exitCode": 143}))
    gone["metadata"]["deletionTimestamp"] = "2026-11-27T12:00:00Z"
    state = pod_state(gone)
    assert state.end == WorkerEnd("removed", "the pod was deleted: Error (signal 15)")
    assert (state.failed, state.deleted) == (True, True)


def test_a_pod_that_is_deleted_after_it_has_finished() -> None:
    gone = pod(phase="Succeeded", containerStatuses=container(terminated={"reason": "Completed", "exitCode": 0}))
    gone["metadata"]["deletionTimestamp"] = "2026-11-27T12:00:00Z"
    assert pod_state(gone).end == WorkerEnd("finished", "Completed")
    assert not pod_state(gone).failed


def test_the_end_of_a_job() -> None:
    def job(*conditions: dict[str, str], **metadata: str) -> dict[str, Any]:
        return {"metadata": metadata, "status": {"conditions": list(conditions)}}

    assert job_end(job()) is None
    assert job_end(None) == WorkerEnd("removed", "the Job is gone: somebody has deleted it")
    assert job_end(job(deletionTimestamp="now")) == WorkerEnd("removed", "the Job is being deleted")
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    assert job_end(job(failed)) == WorkerEnd("deadline", "DeadlineExceeded: too long")
    assert job_end(job({"type": "Complete", "status": "True"})) == WorkerEnd("removed", "Complete")
    assert job_end(job({**failed, "status": "False"})) is None


def test_what_a_pod_runs_first_needs_the_standard_library_alone() -> None:
    import sys

    source = ROOT / "accel_ci" / "pool" / "kubernetes" / "pod_entry.py"
    found = list(ast.walk(ast.parse(source.read_text("utf-8"), feature_version=(3, 9))))
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {"." * node.level + (node.module or "") for node in found if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_the_queues_of_kueue_cover_all_that_pods_ask_for() -> None:
    """Kueue admits no Job with a resource that its queue does not cover."""
    named: dict[str, dict[str, Any]] = {}
    for each in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "kueue" / "queues.yaml").read_text()):
        named.setdefault(each["kind"], {})[each["metadata"]["name"]] = each["spec"]
    assert len(named["LocalQueue"]) == 2
    for name, local in named["LocalQueue"].items():
        own = settings(queue=name, cpu="4", memory="8Gi")
        job = job_manifest(own, REQUEST)
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == name
        [group] = named["ClusterQueue"][local["clusterQueue"]]["resourceGroups"]
        pod = job["spec"]["template"]["spec"]
        asked = {kind for each in (*pod["containers"], *pod["initContainers"]) for kind in each["resources"]["requests"]}
        assert asked == set(group["coveredResources"])
        for flavor in group["flavors"]:
            assert flavor["name"] in named["ResourceFlavor"]
            assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]
