"""The settings of the executor: where the steps of a run have their processes.

Limits of a whole deployment, such as how many runs go at the same time, belong to `dagster.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from accel_ci.config.section import Mistake, Section, as_mapping
from accel_ci.config.values import Namespace, Quantity


class InProcessExecutor(Section):
    """All steps in the process of the run: the quickest, for one machine."""

    kind: Literal["in_process"] = "in_process"


class MultiprocessExecutor(Section):
    """A process on the machine of the run for each step, at most `max_concurrent` at a time."""

    kind: Literal["multiprocess"]
    max_concurrent: Annotated[int, Field(ge=1)] = 4


class StepPod(Section):
    """The pod of a step: Kubernetes quantities, and further configuration in the form of `dagster-k8s/config`.

    Memory is both request and limit; of processors, it is the request.
    """

    cpu: Quantity | None = None
    memory: Quantity | None = None
    config: dict[str, Any] = {}


class KubernetesExecutor(Section):
    """A pod of a cluster for each step. The runs themselves are pods too, of the launcher in `dagster.yaml`.

    `pod` is for all steps, and `steps` for single ones, by the name of their asset. Image, secrets and service account are
    those of the run, unless `config` says otherwise. A step whose pod dies is tried again, `retries` times.
    """

    kind: Literal["kubernetes"]
    namespace: Namespace | None = None
    max_concurrent: Annotated[int, Field(ge=1)] = 4
    pod: StepPod = StepPod()
    steps: dict[str, StepPod] = {}
    retries: Annotated[int, Field(ge=0, le=5)] = 2

    @classmethod
    def mistakes(cls, document: Mapping[str, Any]) -> Iterator[Mistake]:
        """Pods share no disk."""
        if as_mapping(document.get("executor")).get("kind") == "kubernetes" and document.get("store") is None:
            yield ("store",), "is missing: the pods of steps share no disk, so that what they make goes through a bucket"


Executor = InProcessExecutor | MultiprocessExecutor | KubernetesExecutor
"""The key `kind` selects the type; the default is `in_process`."""
