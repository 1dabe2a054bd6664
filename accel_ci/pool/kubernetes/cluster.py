"""A cluster's API as the pool uses it: Jobs and pods of one namespace as plain documents, limits on calls, clear errors.

The client library is imported when a cluster is reached for: most users have none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accel_ci.config.extras import require_extra
from accel_ci.config.settings import KubernetesPoolSettings
from accel_ci.errors import PoolError

_CALL_LIMIT_S = (5, 30)
PATIENCE_S = 300.0
"""How long the API server may be away before a round is given up, in seconds."""

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Cluster:
    """The namespace of a pool. Methods raise `PoolError`."""

    def __init__(self, settings: KubernetesPoolSettings) -> None:
        """Read the configuration of the client; nothing is reached yet."""
        require_extra("kubernetes", "pool.kind: kubernetes")
        import kubernetes
        from kubernetes.config.config_exception import ConfigException

        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG") and settings.context is None:
                configuration = kubernetes.client.Configuration()
                kubernetes.config.load_incluster_config(client_configuration=configuration)
                client = kubernetes.client.ApiClient(configuration)
                found = _IN_CLUSTER.read_text("utf-8").strip()
            else:
                client = kubernetes.config.new_client_from_config(context=settings.context)
                contexts, active = kubernetes.config.list_kube_config_contexts()
                chosen = next((c for c in contexts if c["name"] == settings.context), active)
                found = chosen["context"].get("namespace") or "default"
        except (ConfigException, OSError) as error:
            raise PoolError(
                f"no cluster is configured ({str(error).strip()}); set KUBECONFIG, fix pool.context, or change pool.kind"
            ) from None
        self.namespace = settings.namespace or found
        self._batch = kubernetes.client.BatchV1Api(client)
        self._core = kubernetes.client.CoreV1Api(client)

    def create_job(self, manifest: dict[str, Any]) -> bool:
        """Make a Job; False when there is one of that name."""
        try:
            self._call(
                "create a Job", lambda **o: self._batch.create_namespaced_job(self.namespace, manifest, **o), absent=(409,)
            )
        except _AbsentError:
            return False
        return True

    def job(self, name: str) -> dict[str, Any] | None:
        """A Job, None when there is none."""
        try:
            found = self._call("read a Job", lambda **o: self._batch.read_namespaced_job(name, self.namespace, **o))
            return dict(found)
        except _AbsentError:
            return None

    def label_job(self, name: str, labels: dict[str, str]) -> bool:
        """Set labels of a Job; False when it is not there (any more)."""
        body = {"metadata": {"labels": labels}}
        try:
            self._call("label a Job", lambda **o: self._batch.patch_namespaced_job(name, self.namespace, body, **o))
        except _AbsentError:
            return False
        return True

    def jobs(self, selector: str) -> list[dict[str, Any]]:
        """The Jobs with certain labels."""
        found = self._call(
            "list Jobs", lambda **o: self._batch.list_namespaced_job(self.namespace, label_selector=selector, **o)
        )
        return list(found["items"])

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """The pods with certain labels."""
        found = self._call(
            "list pods", lambda **o: self._core.list_namespaced_pod(self.namespace, label_selector=selector, **o)
        )
        return list(found["items"])

    def delete_job(self, name: str) -> None:
        """Delete a Job with its pods, if it is there; does not wait for their end."""
        with suppress(_AbsentError):
            self._delete_job(name, {})

    def delete_job_as_seen(self, job: Mapping[str, Any]) -> bool:
        """The same for a Job of which nothing has changed since it was read; False when something has."""
        seen = {"uid": job["metadata"]["uid"], "resourceVersion": job["metadata"]["resourceVersion"]}
        try:
            self._delete_job(job["metadata"]["name"], {"preconditions": seen})
        except _AbsentError:
            return False
        return True

    def _delete_job(self, name: str, options: dict[str, Any]) -> None:
        body = {"propagationPolicy": "Background", **options}  # where there is a body, the query is not looked at
        self._call(
            "delete a Job",
            lambda **o: self._batch.delete_namespaced_job(name, self.namespace, body=body, **o),
            absent=(404, 409),
        )

    def delete_pod(self, name: str) -> None:
        """Delete a pod, if it is there; does not wait for its end."""
        with suppress(_AbsentError):
            self._call("delete a pod", lambda **o: self._core.delete_namespaced_pod(name, self.namespace, **o))

    def log(self, pod: str) -> str:
        """The end of what a pod has printed; empty when that cannot be had."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=200, _preload_content=False, _request_timeout=_CALL_LIMIT_S
            )
            return bytes(answer.data)[-16384:].decode("utf-8", "replace")
        except (ApiException, HTTPError):
            return ""

    def _call(self, what: str, ask: Callable[..., Any], absent: tuple[int, ...] = (404,)) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        began = time.monotonic()
        pause_s = 0.5
        while True:
            try:
                return json.loads(ask(_preload_content=False, _request_timeout=_CALL_LIMIT_S).data)
            except ApiException as error:
                if error.status in absent:
                    raise _AbsentError from None
                if error.status not in (429, 500, 502, 503, 504):
                    raise PoolError(self._refused(what, error)) from error
                problem: Exception = error
            except HTTPError as error:
                problem = error
            if time.monotonic() - began > PATIENCE_S:
                raise PoolError(
                    f"the cluster's API server is away ({str(problem).strip()}); run the same again when it answers"
                ) from problem
            time.sleep(pause_s)
            pause_s = min(10.0, pause_s * 2)

    def _refused(self, what: str, error: Any) -> str:
        try:
            said = json.loads(error.body)["message"]
        except (TypeError, ValueError, LookupError):
            said = f"status {error.status} {error.reason}"
        advice = {
            401: "; the credentials of KUBECONFIG are not valid (any more)",
            403: "; give the service account the rights of deploy/kubernetes, or fix pool.namespace",
        }.get(error.status, "; look at the pool's settings")
        return f"the cluster refused to {what} in the namespace {self.namespace}: {said}{advice}"


class _AbsentError(Exception):
    """There is no such thing, there is one already, or it is another by now."""
