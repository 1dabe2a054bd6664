"""The objects of one round in a bucket of any S3 with conditional PUT: read, written, created if absent, listed, signed.

Here belongs S3 with its failures; what the objects mean is `bucket sync.py`'s business and, for workers, the runner's
(`accel_ci.runner.signed_round`). A store that is away is waited for.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from accel_ci.errors import PoolError
from accel_ci.rounds.signing import LONGEST_S, Signer
from accel_ci.runner.signed_store import PATIENCE_S, SignedStore, StoreError
from accel_ci.storage.s3 import s3_client, s3_session

CONNECTIONS = 32
"""How many requests of a round may be under way at a time."""

_Result = TypeVar("_Result")
_LONGEST_PAUSE_S = 10.0
_RESIGN_S = 600.0


@dataclass(frozen=True)
class RoundStore:
    """The bucket of a pool's rounds.

    `worker_endpoint` is the store's address as workers see it, where that is another. Keys that are None come from boto3's
    own chain. URLs are signed for `signed_for_s` seconds: longer than a round can last, for they are not renewed.
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
        """The objects of the round of that name, such as `<run>/round-1`."""
        return RoundBucket(self, f"{self.prefix.strip('/')}/{name}/".lstrip("/"))

    def runs(self, project: str) -> dict[str, float]:
        """What a project has here: the names of its runs, and when each changed last in seconds since the epoch."""
        changed: dict[str, float] = {}
        for name, moment in self.of_round(project).changes().items():
            run = name.partition("/round-")[0] if "/round-" in name else name.partition("/")[0]
            changed[run] = max(moment, changed.get(run, 0.0))
        return changed


class RoundBucket:
    """The objects of one round; all names are below its prefix. Methods raise `PoolError`."""

    def __init__(self, store: RoundStore, prefix: str) -> None:
        """Connect to nothing yet."""
        self._patience_s = PATIENCE_S
        self._store, self._prefix = store, prefix
        self._session = s3_session(store.access_key, store.secret_key, store.region)
        self._client = s3_client(self._session, store.endpoint, connections=CONNECTIONS)
        self._outside = s3_client(self._session, store.worker_endpoint) if store.worker_endpoint else self._client
        self._stores = threading.local()
        self._readers: list[SignedStore] = []
        self._reading: tuple[float, Signer] | None = None
        host = urlsplit(self._client.meta.endpoint_url)
        self._proxied = host.scheme in getproxies() and not proxy_bypass(host.hostname or "")

    def below(self, folder: str) -> RoundBucket:
        """The objects below a folder of this one's."""
        return RoundBucket(self._store, f"{self._prefix}{folder}/")

    def hurry(self, patience_s: float) -> None:
        """Wait for a store that is away no longer than this, also where that is done already."""
        self._patience_s = patience_s
        for reader in self._readers:
            reader.patience_s = patience_s

    # --- objects ------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes | None:
        """What an object holds, None when there is none.

        By a URL of its own and the runner's client, which take a fifth of boto3's time: a driver reads thousands of objects.
        """
        if self._proxied:
            return self._patiently(name, lambda: self._get_by_boto3(name))
        stores = self._stores
        if not hasattr(stores, "reader"):
            stores.reader = SignedStore(self._patience_s)
            self._readers.append(stores.reader)
        if self._reading is None or time.monotonic() - self._reading[0] > _RESIGN_S:
            self._reading = time.monotonic(), self._signer(self._client, 2 * _RESIGN_S)
        url = self._reading[1].get(self._prefix + name)
        try:
            answer = stores.reader.ask("GET", url, name, accept=(200, 404))
        except StoreError as error:
            raise self._trouble(name, error) from error
        return answer.body if answer.status == 200 else None

    def _get_by_boto3(self, name: str) -> bytes | None:
        try:
            answer = self._client.get_object(Bucket=self._store.bucket, Key=self._prefix + name)
            return bytes(answer["Body"].read())
        except self._client.exceptions.NoSuchKey:
            return None

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._patiently(
            name, lambda: self._client.put_object(Bucket=self._store.bucket, Key=self._prefix + name, Body=content)
        )

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if there is none; False when there is one with another content."""

        def ask() -> bool:
            try:
                self._client.put_object(Bucket=self._store.bucket, Key=self._prefix + name, Body=content, IfNoneMatch="*")
            except self._client.exceptions.ClientError as error:
                if _status(error) != 412:
                    raise
                return False
            return True

        return self._patiently(name, ask) or self.get(name) == content

    def sizes(self, folder: str) -> dict[str, int]:
        """The objects below a folder, name to size in bytes, in the order of their names; names are below the folder."""
        return {name: item["Size"] for name, item in self._list(folder)}

    def changes(self) -> dict[str, float]:
        """When each object changed last, in seconds since the epoch."""
        return {name: item["LastModified"].timestamp() for name, item in self._list("")}

    def _list(self, folder: str) -> list[tuple[str, Any]]:
        top = f"{self._prefix}{folder}"

        def ask() -> list[tuple[str, Any]]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._store.bucket, Prefix=top)
            return [(item["Key"].removeprefix(top), item) for page in pages for item in page.get("Contents", ())]

        return self._patiently(folder, ask)

    def clear(self) -> None:
        """Delete all objects of the round."""
        names = list(self.sizes(""))
        for start in range(0, len(names), 1000):
            self._delete(names[start : start + 1000])

    def _delete(self, names: Sequence[str]) -> None:
        wanted = {"Objects": [{"Key": self._prefix + name} for name in names], "Quiet": True}
        answer = self._patiently("", lambda: self._client.delete_objects(Bucket=self._store.bucket, Delete=wanted))
        for refused in answer.get("Errors", ())[:1]:  # the answer's own status is 200
            problem = PoolError(f"it is not deleted: {refused.get('Code')}: {refused.get('Message')}")
            raise self._trouble(refused.get("Key", "").removeprefix(self._prefix), problem)

    # --- URLs ---------------------------------------------------------------------------------------------------

    def signer(self) -> RoundSigner:
        """Signs URLs of the round, all from now on."""
        seconds = min(self._store.signed_for_s, LONGEST_S)
        return RoundSigner(self._signer(self._outside, seconds), self._prefix)

    def _signer(self, client: Any, seconds: float) -> Signer:
        """Where keys are fetched, that may fail for a while, as the store may."""
        return self._patiently("", lambda: Signer(self._session, client, self._store.bucket, seconds))

    def form(self, folder: str) -> dict[str, Any]:
        """A signed form that writes any object below a folder: `url`, `fields`, and what its `key` begins with, `prefix`."""
        prefix = f"{self._prefix}{folder}"
        post = self._patiently(
            folder,
            lambda: self._outside.generate_presigned_post(
                self._store.bucket,
                f"{prefix}${{filename}}",
                Conditions=[["starts-with", "$key", prefix]],
                ExpiresIn=int(min(self._store.signed_for_s, LONGEST_S)),
            ),
        )
        return {"url": post["url"], "fields": post["fields"], "prefix": prefix}

    # --- failures -----------------------------------------------------------------------------------------------

    def _patiently(self, name: str, ask: Callable[[], _Result]) -> _Result:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # type: ignore[import-untyped]

        began = time.monotonic()
        pause_s = 0.2
        while True:
            try:
                return ask()
            except (BotoCoreError, ClientError) as error:
                status = _status(error)
                passes = not isinstance(error, NoCredentialsError) and (status == 0 or status >= 500 or status in (409, 429))
                if not passes or time.monotonic() - began > self._patience_s:
                    raise self._trouble(name, error) from error
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _trouble(self, name: str, error: Exception) -> PoolError:
        place = f"bucket {self._store.bucket}, {self._prefix}{name}"
        return PoolError(f"{place}: {error}; look at the pool's bucket: its endpoint, credentials and policy")


@dataclass(frozen=True)
class RoundSigner:
    """Signs URLs of one round's objects, all from the same moment on."""

    signer: Signer
    prefix: str

    def get(self, name: str) -> str:
        """A URL that reads an object."""
        return self.signer.get(self.prefix + name)

    def claim(self, name: str) -> tuple[str, str]:
        """The URLs that create an object if it is absent, and read it."""
        return self.signer.create(self.prefix + name), self.signer.get(self.prefix + name)


def _status(error: Any) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
