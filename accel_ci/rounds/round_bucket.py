"""The objects of one round in a bucket of any S3 with conditional PUT: read, write, create if absent, list, sign.

This module knows S3 and its failures: it waits for a store that is away. The meaning of the objects is in `bucket_round.py`
and, for workers, in `accel_ci.runner.signed_round`.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from accel_ci.errors import PoolError
from accel_ci.rounds.signing import LONGEST_S, Signer
from accel_ci.runner.signed_store import PATIENCE_S, SignedStore, StoreError
from accel_ci.storage.s3 import is_transient, s3_client, s3_session, status_of

CONNECTIONS = 32  # the number of requests of a round at a time
_LOG = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_RESIGN_S = 600.0
LARGEST_OBJECT = 16 << 20  # bytes of an object that a worker writes by a form


@dataclass(frozen=True)
class RoundStore:
    """The bucket of a pool's rounds.

    `worker_endpoint` is the store's address for workers, if it differs from `endpoint`. Keys that are None come from boto3's
    own chain. URLs are valid for `signed_for_s` seconds; they are not renewed, so this must be longer than any round.
    """

    bucket: str
    prefix: str = "rounds"
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    worker_endpoint: str | None = None
    signed_for_s: float = 24 * 3600.0

    def of_round(self, name: str) -> RoundBucket:
        """Return the objects of the round of that name, such as `<run>/round-1`."""
        return RoundBucket(self, f"{self.prefix.strip('/')}/{name}/".lstrip("/"))

    def runs(self, project: str) -> dict[str, float]:
        """Return a project's runs by name, with the time of each one's last change in seconds since the epoch."""
        changed: dict[str, float] = {}
        for name, item in self.of_round(project).listed("").items():
            run = name.partition("/round-")[0] if "/round-" in name else name.partition("/")[0]
            changed[run] = max(item["LastModified"].timestamp(), changed.get(run, 0.0))
        return changed


class RoundBucket:
    """The objects of one round, by names below its prefix. Methods raise `PoolError`."""

    def __init__(self, store: RoundStore, prefix: str) -> None:
        self._patience_s = PATIENCE_S
        self._store, self._prefix = store, prefix
        self._session = s3_session(store.access_key, store.secret_key, store.region)
        self._client = s3_client(self._session, store.endpoint, connections=CONNECTIONS)
        self._outside = s3_client(self._session, store.worker_endpoint) if store.worker_endpoint else self._client
        self._threads = ThreadPoolExecutor(CONNECTIONS, "bucket")
        self._stores = threading.local()
        self._readers: list[SignedStore] = []
        self._reading: tuple[float, Signer] | None = None
        host = urlsplit(self._client.meta.endpoint_url)
        self._proxied = host.scheme in getproxies() and not proxy_bypass(host.hostname or "")

    def below(self, folder: str) -> RoundBucket:
        """Return the objects below a folder of this bucket."""
        return RoundBucket(self._store, f"{self._prefix}{folder}/")

    def hurry(self, patience_s: float) -> None:
        """Wait for a store that is away no longer than this; requests that are waiting already obey, too."""
        self._patience_s = patience_s
        for reader in self._readers:
            reader.patience_s = patience_s

    def get(self, name: str) -> bytes | None:
        """Return the content of an object, None when there is none.

        A signed URL and the runner's client take a fifth of boto3's time, and a driver reads thousands of objects.
        """
        if self._proxied:
            return self._retry(name, lambda: self._get_by_boto3(name))
        stores = self._stores
        if not hasattr(stores, "reader"):
            stores.reader = SignedStore(self._patience_s)
            self._readers.append(stores.reader)
        if self._reading is None or time.monotonic() - self._reading[0] > _RESIGN_S:
            self._reading = time.monotonic(), self._signer(self._client, 2 * _RESIGN_S)
        url = self._reading[1].get(name)
        try:
            answer = stores.reader.ask("GET", url, name, accept=(200, 404))
        except StoreError as error:
            raise self._error(name, error) from error
        if answer.tries > 1:
            _LOG.info("%s was read at try %d", self._place(name), answer.tries)
        return answer.body if answer.status == 200 else None

    def get_all(self, folder: str, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return the name and content of those of the named objects below a folder that exist."""
        contents = self.map(lambda name: self.get(folder + name), names)
        return [(name, content) for name, content in zip(names, contents, strict=True) if content is not None]

    def map(self, call: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Return the results of a call for each item; up to `CONNECTIONS` calls run at a time."""
        return list(self._threads.map(call, items))

    def _get_by_boto3(self, name: str) -> bytes | None:
        try:
            return bytes(self._client.get_object(**self._object(name))["Body"].read())
        except self._client.exceptions.NoSuchKey:
            return None

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._retry(name, lambda: self._client.put_object(**self._object(name), Body=content))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; False when it exists with another content."""
        try:
            self._retry(name, lambda: self._client.put_object(**self._object(name), Body=content, IfNoneMatch="*"))
        except PoolError as error:
            if status_of(error.__cause__) != 412:
                raise
            return self.get(name) == content
        return True

    def _object(self, name: str) -> dict[str, str]:
        return {"Bucket": self._store.bucket, "Key": self._prefix + name}

    def listed(self, folder: str) -> dict[str, Any]:
        """Return the objects below a folder, in the order of their names: name below the folder to S3's record of it."""
        top = f"{self._prefix}{folder}"

        def ask() -> dict[str, Any]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._store.bucket, Prefix=top)
            return {item["Key"].removeprefix(top): item for page in pages for item in page.get("Contents", ())}

        return self._retry(folder, ask)

    def clear(self) -> None:
        """Delete all objects of the round."""
        names = list(self.listed(""))
        for start in range(0, len(names), 1000):
            wanted = {"Objects": [{"Key": self._prefix + name} for name in names[start : start + 1000]], "Quiet": True}
            answer = self._retry("", partial(self._client.delete_objects, Bucket=self._store.bucket, Delete=wanted))
            for refused in answer.get("Errors", ())[:1]:  # the answer's own status is 200
                problem = PoolError(f"it is not deleted: {refused.get('Code')}: {refused.get('Message')}")
                raise self._error(refused.get("Key", "").removeprefix(self._prefix), problem)

    def signer(self) -> Signer:
        """Return a signer of the round's URLs for workers, which are valid from now on."""
        return self._signer(self._outside, self._store.signed_for_s)

    def _signer(self, client: Any, seconds: float) -> Signer:
        """Make a signer. Its keys may have to be fetched, which may fail for a while like any request."""
        return self._retry("", lambda: Signer(self._session, client, self._store.bucket, self._prefix, seconds))

    def form(self, folder: str) -> dict[str, Any]:
        """Return a signed form that writes any object of up to 16 MiB below a folder: `url`, `fields`, `prefix` of `key`."""
        prefix = f"{self._prefix}{folder}"
        ask = partial(
            self._outside.generate_presigned_post, self._store.bucket, f"{prefix}${{filename}}",
            Conditions=[["starts-with", "$key", prefix], ["content-length-range", 0, LARGEST_OBJECT]],
            ExpiresIn=int(min(self._store.signed_for_s, LONGEST_S)),
        )  # fmt: skip
        return {**self._retry(folder, ask), "prefix": prefix}

    def _retry(self, name: str, ask: Callable[[], _Result]) -> _Result:
        """Make a request, again while the store is away, but no longer than this bucket's patience."""
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        retrying = Retrying(
            retry=retry_if_exception(is_transient), wait=wait_random_exponential(_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            stop=lambda state: (state.seconds_since_start or 0.0) > self._patience_s,
            before_sleep=partial(_log_retry, self._place(name)), reraise=True,
        )  # fmt: skip
        try:
            return retrying(ask)
        except (BotoCoreError, ClientError) as error:
            raise self._error(name, error) from error

    def _place(self, name: str) -> str:
        return f"bucket {self._store.bucket}, {self._prefix}{name}"

    def _error(self, name: str, error: Exception) -> PoolError:
        return PoolError(f"{self._place(name)}: {error}; look at the pool's bucket: its endpoint, credentials and policy")


def packed(content: object) -> bytes:
    """Return an object of JSON, gzipped; equal content makes equal bytes."""
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 6, mtime=0)


def _log_retry(place: str, state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    _LOG.info("%s: retry in %.1f s after %s", place, state.upcoming_sleep, error)
