"""A cluster's API as the pool uses it: Jobs and pods of one namespace as plain documents, time limits, clear errors.

The client library is imported when a cluster is needed: most users have none.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from accel_ci.config.extras import require_extra
from accel_ci.config.pool_settings import KubernetesPoolSettings
from accel_ci.errors import PoolError

_LOG = logging.getLogger(__name__)
_CALL_LIMIT_S = (5, 30)
PATIENCE_S = 300.0  # the time that the API server may be away before a round is given up, in seconds
_SECOND_PATIENCE_S = 5.0  # the same after it was given up once
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_ADVICE = {
    401: "the credentials of KUBECONFIG are not valid (any more)",
    403: "give the service account the rights of deploy/kubernetes, or fix pool.namespace",
}
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Cluster:
    """The namespace of a pool. Methods raise `PoolError`."""

    def __init__(self, settings: KubernetesPoolSettings, patience_s: float | None = None) -> None:
        """Read the configuration of the client; nothing is reached yet.

        `patience_s` is for an API server that is away, by default `PATIENCE_S`.
        """
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
                file = os.environ.get("KUBECONFIG") or None
                client = kubernetes.config.new_client_from_config(file, settings.context)
                contexts, active = kubernetes.config.list_kube_config_contexts(file)
                chosen = next((c for c in contexts if c["name"] == settings.context), active)
                found = chosen["context"].get("namespace") or "default"
        except (ConfigException, OSError) as error:
            problem = f"no cluster is configured ({str(error).strip()})"
            raise PoolError(f"{problem}; set KUBECONFIG, fix pool.context, or change pool.kind") from None
        self.namespace = settings.namespace or found
        self._patience_s = self._patience_now_s = PATIENCE_S if patience_s is None else patience_s
        self._where = client.configuration.host
        self._batch = kubernetes.client.BatchV1Api(client)
        self._core = kubernetes.client.CoreV1Api(client)

    def create_job(self, manifest: dict[str, Any]) -> bool:
        """Create a Job; False when there is one of that name."""
        create = self._batch.create_namespaced_job
        return self._call("create a Job", create, self.namespace, manifest, absent=(409,)) is not None

    def try_job(self, manifest: dict[str, Any]) -> None:
        """Have the cluster check a Job with all its rules, without creating it."""
        self._call("create a Job", self._batch.create_namespaced_job, self.namespace, manifest, absent=(409,), dry_run="All")

    def nodes(self) -> list[dict[str, Any]] | None:
        """The nodes of the cluster; None where the service account may not list them."""
        found = self._call("list nodes", self._core.list_node, absent=(403,))
        return None if found is None else list(found["items"])

    def job(self, name: str) -> dict[str, Any] | None:
        """A Job, None when there is none."""
        return self._call("read a Job", self._batch.read_namespaced_job, name, self.namespace)

    def refusal_of_pods(self, job: str) -> str | None:
        """The cluster's newest reason for making no pods for a Job; None without one, or if events may not be read."""
        selector = f"involvedObject.kind=Job,involvedObject.name={job},reason=FailedCreate"
        ask = self._core.list_namespaced_event
        found = self._call("list events", ask, self.namespace, absent=(403,), field_selector=selector)
        events = sorted((found or {}).get("items", ()), key=lambda event: event.get("lastTimestamp") or "")
        return str(events[-1].get("message")) if events else None

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether this account may do something in the namespace; `resource` is such as `pods/log`."""
        import kubernetes

        kind, _, sub = resource.partition("/")
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": kind, "subresource": sub}
        review = kubernetes.client.AuthorizationV1Api(self._batch.api_client).create_self_subject_access_review
        found = self._call("review its rights", review, {"spec": {"resourceAttributes": asked}})
        return bool(((found or {}).get("status") or {}).get("allowed"))

    def quotas_and_limits(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """The resource quotas and the limit ranges of the namespace; None where the account may not list them."""
        ask = self._core.list_namespaced_resource_quota, self._core.list_namespaced_limit_range
        quotas, limits = (self._call("list quotas", one, self.namespace, absent=(403,)) for one in ask)
        return None if quotas is None or limits is None else (list(quotas["items"]), list(limits["items"]))

    def date(self) -> str | None:
        """The `Date` of an answer of the API server."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._core.list_namespaced_pod(
                self.namespace, limit=1, _preload_content=False, _request_timeout=_CALL_LIMIT_S
            )
        except ApiException as error:
            answer = error
        except HTTPError:
            return None
        return (answer.headers or {}).get("Date")

    def label_job(self, name: str, labels: dict[str, str]) -> bool:
        """Set labels of a Job; False when it does not exist."""
        body = {"metadata": {"labels": labels}}
        return self._call("label a Job", self._batch.patch_namespaced_job, name, self.namespace, body) is not None

    def jobs(self, selector: str) -> list[dict[str, Any]]:
        """The Jobs that a label selector matches."""
        return self._list("list Jobs", self._batch.list_namespaced_job, selector)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """The pods that a label selector matches."""
        return self._list("list pods", self._core.list_namespaced_pod, selector)

    def delete_job(self, name: str, seen: Mapping[str, Any] | None = None) -> bool:
        """Delete a Job with its pods, without waiting; False when it is gone, or has changed since `seen` was read."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}  # with a body, the query is ignored
        if seen is not None:
            body["preconditions"] = {name: seen["metadata"][name] for name in ("uid", "resourceVersion")}
        delete = self._batch.delete_namespaced_job
        return self._call("delete a Job", delete, name, self.namespace, body=body, absent=(404, 409)) is not None

    def delete_pod(self, name: str) -> None:
        """Delete a pod, if it exists, without waiting for its end."""
        self._call("delete a pod", self._core.delete_namespaced_pod, name, self.namespace)

    def log(self, pod: str) -> str:
        """The end of a pod's output; empty when it cannot be read."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=200, _preload_content=False, _request_timeout=_CALL_LIMIT_S
            )
            return bytes(answer.data)[-16384:].decode("utf-8", "replace")
        except (ApiException, HTTPError):
            return ""

    def _list(self, what: str, ask: Callable[..., Any], selector: str) -> list[dict[str, Any]]:
        return list((self._call(what, ask, self.namespace, absent=(), label_selector=selector) or {})["items"])

    def _call(
        self, what: str, ask: Callable[..., Any], *arguments: Any, absent: tuple[int, ...] = (404,), **options: Any
    ) -> dict[str, Any] | None:
        """Call the API, with retries; None when it answers with one of the `absent` statuses."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        def is_transient(error: BaseException) -> bool:
            return isinstance(error, HTTPError) or (isinstance(error, ApiException) and error.status in _TRANSIENT)

        def log(state: RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            reason = getattr(error, "reason", None) or error
            left = self._patience_now_s - (state.seconds_since_start or 0.0)
            away = "the cluster's API server at %s did not %s (%s); next try in %.1f s, giving up in %.0f s"
            _LOG.warning(away, self._where, what, reason, state.upcoming_sleep, max(left, 0.0))

        retrying = Retrying(
            retry=retry_if_exception(is_transient), wait=wait_exponential(0.5, max=10),
            stop=stop_before_delay(self._patience_now_s), before_sleep=log, reraise=True,
        )  # fmt: skip
        try:
            answer = retrying(ask, *arguments, **options, _preload_content=False, _request_timeout=_CALL_LIMIT_S)
            self._patience_now_s = self._patience_s
            return dict(json.loads(answer.data))
        except (ApiException, HTTPError) as error:
            if getattr(error, "status", None) in absent:
                return None
            if is_transient(error):
                self._patience_now_s = min(self._patience_s, _SECOND_PATIENCE_S)  # what follows is a clean-up
                away = f"the cluster's API server at {self._where} is away ({str(error).strip()})"
                raise PoolError(f"{away}; run the same again when it answers") from error
            raise self._refused(what, error) from error

    def _refused(self, what: str, error: Any) -> PoolError:
        try:
            reason = json.loads(error.body)["message"]
        except (TypeError, ValueError, LookupError):
            reason = f"status {error.status} {error.reason}"
        advice = _ADVICE.get(error.status, "look at the pool's settings")
        return PoolError(f"the cluster refused to {what} in the namespace {self.namespace}: {reason}; {advice}")
