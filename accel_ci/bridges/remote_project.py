"""A project whose web server is reached over the network: its job `start` is launched, and the builds waited for.

The requests to Dagster's GraphQL belong here, with limits of time and size. Only those that change nothing are tried again.
"""

from __future__ import annotations

import json
import logging
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from accel_ci.bridges.build_answer import ANSWER, CALLER, STARTED_BY, BuildAnswer, read_document, stopped
from accel_ci.errors import AccelCiError
from accel_ci.process.waiting import poll
from accel_ci.progress import Progress, Step
from accel_ci.redaction import OF_THIS_PROCESS, without_credentials

_LOG = logging.getLogger(__name__)

TOKEN = "ACCEL_CI_DAGSTER_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with a bearer token for a proxy before the web server."""

ENDED = ("SUCCESS", "FAILURE", "CANCELED")

_TIMEOUT_S = 60.0
_LARGEST_ANSWER = 32 << 20
_TRIES = 5
_LONGEST_PAUSE_S = 30.0
_ENDING_S = 30.0
"""A start that is ended may still queue builds for so long."""

_REPOSITORIES = """{ repositoriesOrError { __typename ... on PythonError { message } ... on RepositoryConnection {
  nodes { name location { name } jobs { name } } } } }"""
_LAUNCH = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } ... on UnauthorizedError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_STARTED = """query ($run: ID!, $after: String) { logsForRun(runId: $run, afterCursor: $after) { __typename
  ... on PythonError { message } ... on EventConnection { cursor hasMore events { __typename
  ... on ExecutionStepOutputEvent { metadataEntries { label ... on PipelineRunMetadataEntry { runId } } }
  ... on ExecutionStepFailureEvent { error { message } failureMetadata { description } } } } } }"""
_RUNS = """query ($runs: [String!]) { runsOrError(filter: {runIds: $runs}) { __typename ... on PythonError { message }
  ... on Runs { results { runId status jobName } } } }"""
_TAGGED = """query ($key: String!, $value: String!) { runsOrError(filter: {tags: [{key: $key, value: $value}]}) {
  __typename ... on PythonError { message } ... on Runs { results { runId status } } } }"""
_ANSWERS = """query ($run: ID!) { runOrError(runId: $run) { __typename ... on PythonError { message } ... on Run {
  assetMaterializations { metadataEntries { label ... on TextMetadataEntry { text } } } } } }"""
_TERMINATE = """mutation ($runs: [String!]!) { terminateRuns(runIds: $runs) { __typename
  ... on PythonError { message } ... on TerminateRunsResult { terminateRunResults { __typename
  ... on TerminateRunFailure { message } ... on UnauthorizedError { message } ... on PythonError { message } } } } }"""


class AwayError(AccelCiError):
    """The server cannot answer now."""


@dataclass(frozen=True)
class RemoteRun:
    """A run of the project: the build that it works on, its job, and its status in Dagster's words."""

    id: str
    build: str
    job: str
    status: str

    @property
    def has_ended(self) -> bool:
        """True once nothing can come of it any more."""
        return self.status in ENDED


class RemoteProject:
    """The project behind an address, until the context ends."""

    def __init__(self, url: str, token: str | None = None, location: str | None = None) -> None:
        """Prepare requests; `location` is the code location, needed where several backends share the server.

        Raises `AccelCiError` for an address that is none, or a token that would be sent over an open network.
        """
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise AccelCiError(
                f"--url {without_credentials(url)}: name the web server's address, such as https://ci.example.org"
            )
        if token and address.scheme == "http" and address.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise AccelCiError(f"${TOKEN} is only sent over https; change --url")
        if token:
            OF_THIS_PROCESS.learn([token])
        self.url, self._location = url.rstrip("/"), location
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT_S, follow_redirects=False)

    def __enter__(self) -> RemoteProject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def start(self, chosen: Mapping[str, Any]) -> str:
        """Launch the job `start` with these options of its launchpad; return its run. Raises `AccelCiError`.

        Where the answer is lost, the run is looked for: nothing is launched twice, and no run is left to itself.
        """
        config, caller = {"ops": {"start_builds": {"config": dict(chosen)}}}, secrets.token_hex(16)
        params = {
            "selector": {**self._place(), "jobName": "start"},
            "runConfigData": json.dumps(config),
            "executionMetadata": {"tags": [{"key": CALLER, "value": caller}]},
        }
        try:
            answer = self._ask(_LAUNCH, {"params": params}, tries=1)["launchRun"]
        except AwayError:
            if launched := self._tagged(CALLER, caller):
                return next(iter(launched))
            raise
        if answer["__typename"] != "LaunchRunSuccess":
            told = [answer.get("message"), *(each.get("message") for each in answer.get("errors") or ())]
            raise AccelCiError(f"{self.url} starts nothing: {'; '.join(filter(None, told)) or answer['__typename']}")
        return str(answer["run"]["runId"])

    def _place(self) -> dict[str, str]:
        """Return the repository that has the job. Raises `AccelCiError` where that is not exactly one."""
        nodes = _good(self._ask(_REPOSITORIES, {})["repositoriesOrError"], "RepositoryConnection")["nodes"]
        found = {
            node["location"]["name"]: node["name"] for node in nodes if any(job["name"] == "start" for job in node["jobs"])
        }
        if self._location is None and len(found) > 1:
            raise AccelCiError(f"{self.url} has several projects: choose one of {', '.join(sorted(found))} with --location")
        name = self._location or next(iter(found), "")
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise AccelCiError(f"{self.url} has no project {name!r} that can start builds; there are: {known}")
        return {"repositoryLocationName": name, "repositoryName": found[name]}

    def builds_of(self, start: str) -> dict[str, str]:
        """Return the runs that the job `start` has queued, by the names of their builds. Raises `AccelCiError`."""
        runs, after, more = dict[str, str](), None, True
        while more:
            log = _good(self._ask(_STARTED, {"run": start, "after": after})["logsForRun"], "EventConnection")
            for event in log["events"]:
                if "error" in event:
                    failure = event.get("failureMetadata") or {}
                    raise AccelCiError(failure.get("description") or (event["error"] or {}).get("message") or "it failed")
                runs |= {entry["label"]: entry["runId"] for entry in event.get("metadataEntries") or () if "runId" in entry}
            after, more = log["cursor"], log["hasMore"]
        return runs

    def look_at(self, runs: Mapping[str, str]) -> list[RemoteRun]:
        """Return the states of runs, given by the names of their builds.

        Raises `AwayError` where the server cannot answer now, else `AccelCiError`.
        """
        found = _good(self._ask(_RUNS, {"runs": list(runs.values())}, tries=1)["runsOrError"], "Runs")["results"]
        by_id = {one["runId"]: one for one in found}
        if missing := [build for build, run in runs.items() if run not in by_id]:
            raise AccelCiError(
                f"{self.url} does not know the runs of {', '.join(missing)} any more: somebody has deleted them"
            )
        return [RemoteRun(run, build, one["jobName"], one["status"]) for build, run in runs.items() for one in [by_id[run]]]

    def answer(self, run: RemoteRun) -> BuildAnswer:
        """Return the answer of a run that has ended. Raises `AccelCiError`."""
        page = f"{self.url}/runs/{run.id}"
        made = _good(self._ask(_ANSWERS, {"run": run.id})["runOrError"], "Run")["assetMaterializations"]
        texts = [e["text"] for one in made for e in one["metadataEntries"] if e["label"] == ANSWER and e.get("text")]
        if not texts:
            return stopped(run.build, run.job, f"the run ended without results: {run.status.lower()}", page)
        found = read_document(texts[-1])
        if run.status != "SUCCESS":
            return stopped(run.build, found.part, f"the run ended as {run.status.lower()}: {found.title}", page)
        return found

    def _tagged(self, key: str, value: str) -> dict[str, str]:
        """Return the statuses of the runs with a tag."""
        found = _good(self._ask(_TAGGED, {"key": key, "value": value})["runsOrError"], "Runs")["results"]
        return {one["runId"]: one["status"] for one in found}

    def end(self, start: str, every_s: float = 0.5) -> None:
        """End a run of the job `start`, and all that it has queued until then. Raises `AccelCiError`.

        A run that has just ended by itself is no error; one that the server may not end is.
        """
        self._terminate([start])
        for _ in poll(_LOG, f"the end of {start}", every_s, _ENDING_S):
            with suppress(AwayError):
                if all(run.has_ended for run in self.look_at({"the start": start})):
                    break
        if going := [run for run, status in self._tagged(STARTED_BY, start).items() if status not in ENDED]:
            self._terminate(going)

    def _terminate(self, runs: Sequence[str]) -> None:
        answer = _good(self._ask(_TERMINATE, {"runs": list(runs)})["terminateRuns"], "TerminateRunsResult")
        for one in answer["terminateRunResults"]:
            if one["__typename"] in ("UnauthorizedError", "PythonError"):
                raise AccelCiError(f"{self.url} does not end runs: {one.get('message') or one['__typename']}")

    def _ask(self, question: str, variables: Mapping[str, Any], *, tries: int = _TRIES) -> dict[str, Any]:
        """Send a question and return the data of the answer. Raises `AccelCiError`."""
        pause = wait_random_exponential(multiplier=0.5, max=_LONGEST_PAUSE_S)
        again = Retrying(
            stop=stop_after_attempt(tries), wait=pause, retry=retry_if_exception_type((httpx.TransportError, AwayError)),
            reraise=True,
        )  # fmt: skip
        try:
            document = again(self._send, question, variables)
        except httpx.HTTPError as error:
            why = type(error).__name__
            raise AwayError(f"{self.url} cannot be reached ({why}); does Dagster's web server run there?") from None
        data = document.get("data")
        if document.get("errors") or not isinstance(data, dict):
            told = "; ".join(str(each.get("message")) for each in document.get("errors") or ())
            raise AccelCiError(f"{self.url} refused a question: {told[:1000] or 'no data'}; is it a Dagster web server?")
        return data

    def _send(self, question: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        body = {"query": question, "variables": variables}
        with self._client.stream("POST", f"{self.url}/graphql", json=body) as response:
            if response.status_code >= 500 or response.status_code == 429:
                raise AwayError(f"{self.url} answers with status {response.status_code}; try again later")
            if response.status_code in (401, 403):
                raise AccelCiError(f"{self.url} does not let this job in; set ${TOKEN}")
            content = b""
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _LARGEST_ANSWER:
                    raise AccelCiError(f"{self.url} sent an answer of more than {_LARGEST_ANSWER:,} bytes")
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise AccelCiError(f"{self.url} answers with status {response.status_code} and no JSON; correct --url")
        return document


def _good(answer: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return an answer of the kind that was asked for. Raises `AccelCiError` for another one."""
    if answer["__typename"] != kind:
        raise AccelCiError(f"the project's web server answers: {answer.get('message') or answer['__typename']}")
    return answer


def build_remotely(
    project: RemoteProject, chosen: Mapping[str, Any], limit_s: float, progress: Progress, *, every_s: float = 5.0
) -> list[BuildAnswer]:
    """Have a project start builds, wait until they have ended, and return their answers.

    They are looked at every `every_s` seconds; a server that is away meanwhile is waited for. Whoever interrupts the wait
    ends the runs. Raises `AccelCiError`, also where they have not ended within `limit_s` seconds; they go on then.
    """
    start = None
    try:
        with _uninterrupted():
            start = project.start(chosen)
        with progress.step("start") as step:
            [started] = _wait(project, {"the start": start}, limit_s, every_s, step)
            queued = project.builds_of(start)
            if not queued:
                raise AccelCiError(f"{project.url} has started no build: {project.url}/runs/{started.id} tells why")
            step.note(", ".join(queued))
        with progress.step("builds") as step:
            ended = _wait(project, queued, limit_s, every_s, step)
            step.note(", ".join(f"{run.build}: {run.status.lower()}" for run in ended))
    except KeyboardInterrupt:
        if start is not None:
            with progress.step("end of the builds") as step:
                step.note(_end(project, start))
        raise
    return [project.answer(run) for run in ended]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have an interrupt wait until the end of the context: a run that nobody knows can be ended by nobody.

    A mask of signals would not do: libraries have threads, to which they may be delivered.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda given, _frame: came.append(given)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _end(project: RemoteProject, start: str) -> str:
    """End what an interrupted wait was for, and return what became of it."""
    try:
        project.end(start)
    except AccelCiError as error:
        return f"they may go on, see {project.url}/runs: {error}"
    return "they are ended"


def _wait(project: RemoteProject, runs: Mapping[str, str], limit_s: float, every_s: float, step: Step) -> list[RemoteRun]:
    shown = ""
    for _ in poll(_LOG, f"runs of {project.url}", every_s, limit_s):
        try:
            found = project.look_at(runs)
            if all(run.has_ended for run in found):
                return found
            states = ", ".join(f"{run.build}: {run.status.lower()}" for run in found)
        except AwayError as error:
            states = str(error)
        if states != shown:
            shown = states
            step.say(states)
    raise AccelCiError(f"{shown}: not ended within {limit_s / 3600:g} hours; the runs go on, see {project.url}/runs")
