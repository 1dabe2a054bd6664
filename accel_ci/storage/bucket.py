"""Keep the store's files in a bucket of any S3 that supports `If-None-Match` and `If-Match` on `PUT`.

An object is written by one conditional `PUT`, so that a writer replaces the version that it has seen or tries again. It is
read through a local cache by ETag.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    before_sleep_log,
    retry,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import whole_file
from accel_ci.storage.object_store import Entry
from accel_ci.storage.s3 import Keys, is_transient, s3_client, s3_session, status_of

TRIES = 8
"""The number of times that a `PUT` is tried while others write the same object."""

CACHE_BYTES = 20 << 30
"""The size above which the cache drops the files that were used least recently."""

_LONGEST_PAUSE_S = 10.0
_Result = TypeVar("_Result")
_LOG = logging.getLogger(__name__)


class _ChangedError(Exception):
    """Another writer changed the object between this writer's look at it and its write."""


class BucketStore:
    """The objects below a prefix of a bucket."""

    def __init__(self, client: Any, bucket: str, prefix: str, cache: Path, patience_s: float = 0.0) -> None:
        """`patience_s` is the time that the store may be away before a request fails."""
        self._patience_s = patience_s
        self._client, self._bucket, self._cache = client, bucket, cache
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._trimmed = False

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """See `ObjectStore`."""
        top = f"{self._prefix}{folder}/" if folder else self._prefix
        start = top + _before(first)

        def ask() -> list[Entry]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=top, StartAfter=start)
            found: list[Entry] = []
            for page in pages:
                for item in page.get("Contents", ()):
                    part, _, file = item["Key"].removeprefix(top).partition("/")
                    if part > last:
                        return found
                    if first <= part and file and "/" not in file:
                        found.append(Entry(item["Key"].removeprefix(self._prefix), item["ETag"].strip('"'), item["Size"]))
            return found

        return self._ask(top, ask)

    def location(self, name: str) -> str:
        """See `SharedFiles`."""
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def list_below(self, folder: str) -> Sequence[Entry]:
        """See `SharedFiles`."""
        top = f"{self._prefix}{folder}/"

        def ask() -> Sequence[Entry]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=top)
            return [
                Entry(item["Key"].removeprefix(self._prefix), item["ETag"].strip('"'), item["Size"])
                for page in pages
                for item in page.get("Contents", ())
                if not item["Key"].endswith("/")
            ]

        return self._ask(top, ask)

    def find(self, name: str) -> Entry | None:
        """See `ObjectStore`."""
        try:
            ask = partial(self._client.head_object, Bucket=self._bucket, Key=self._prefix + name)
            head = self._ask(name, ask, {404: FileNotFoundError(name)})
        except FileNotFoundError:
            return None
        return Entry(name, head["ETag"].strip('"'), head["ContentLength"])

    def fetch(self, entry: Entry) -> Path:
        """See `ObjectStore`."""
        path = self._cache / entry.version / entry.name
        if path.is_file():
            os.utime(path)
            return path
        if not self._trimmed:
            _trim(self._cache)
            self._trimmed = True
        path.parent.mkdir(parents=True, exist_ok=True)
        self.download(entry, path)
        return path

    def download(self, entry: Entry, path: Path) -> None:
        """See `SharedFiles`."""
        key, gone = self._prefix + entry.name, FileNotFoundError(entry.name)

        def ask() -> None:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=f'"{entry.version}"')
            with whole_file(path) as file:
                file.writelines(answer["Body"].iter_chunks(1 << 20))

        self._ask(entry.name, ask, {404: gone, 412: gone})

    def upload(self, path: Path, name: str) -> None:
        """See `SharedFiles`. A large file is sent in parts."""

        def ask() -> None:
            with path.open("rb") as content:
                own = {"ContentType": media_type(name)}
                self._client.upload_fileobj(content, self._bucket, self._prefix + name, ExtraArgs=own)

        self._ask(name, ask)

    def create(self, name: str, content: bytes) -> bool:
        """See `SharedFiles`."""
        try:
            self._put_over(name, content, None)
        except _ChangedError:
            return False
        return True

    def replace(self, name: str, content: bytes, seen: Entry | None) -> Entry | None:
        """See `SharedFiles`."""
        try:
            return self._put_over(name, content, seen)
        except _ChangedError:  # perhaps by this very request, whose answer was lost
            there = self.find(name)
            return there if there is not None and there.version == _md5(content) else None

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """See `ObjectStore`. Raises `AccelCiError` if others keep writing the same object."""
        return self.put_bytes(name, content.to_pybytes())

    def put_bytes(self, name: str, content: bytes) -> Entry:
        """See `SharedFiles`. Raises `AccelCiError` as `put` does."""
        try:
            return self._put(name, content)
        except RetryError:
            problem = f"{name} in bucket {self._bucket} changed during each of {TRIES} writes"
            raise AccelCiError(f"{problem}; let one process write a build") from None

    @retry(
        retry=retry_if_exception_type(_ChangedError),
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(0.05, max=2),
        before_sleep=before_sleep_log(_LOG, logging.INFO),
    )
    def _put(self, name: str, data: bytes) -> Entry:
        there = self.find(name)
        if there is not None and there.version == _md5(data):
            return there
        return self._put_over(name, data, there)

    def _put_over(self, name: str, data: bytes, seen: Entry | None) -> Entry:
        """Write an object over the version that was seen. Raises `_ChangedError` if it is another one by now."""
        condition = {"IfNoneMatch": "*"} if seen is None else {"IfMatch": f'"{seen.version}"'}
        place = {"Bucket": self._bucket, "Key": self._prefix + name, "ContentType": media_type(name)}
        ask = partial(self._client.put_object, Body=data, **place, **condition)
        changed = (409, 412) if seen is None else (404, 409, 412)
        answer = self._ask(name, ask, dict.fromkeys(changed, _ChangedError(name)))
        return Entry(name, answer["ETag"].strip('"'), len(data))

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        self._ask(name, partial(self._client.delete_object, Bucket=self._bucket, Key=self._prefix + name))

    def _ask(
        self, name: str, ask: Callable[[], _Result], refusals: Mapping[int, Exception] = MappingProxyType({})
    ) -> _Result:
        """Make a request, again while the store is away, but no longer than this store's patience.

        An answer with a status in `refusals` raises that error; others raise `AccelCiError` with what to check.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        def attempt() -> _Result:
            try:
                return ask()
            except ClientError as error:
                if refusal := refusals.get(status_of(error)):
                    raise refusal from None
                raise

        retrying = Retrying(
            retry=retry_if_exception(is_transient), wait=wait_random_exponential(0.5, max=_LONGEST_PAUSE_S),
            stop=stop_before_delay(self._patience_s), before_sleep=self._log_retry, reraise=True,
        )  # fmt: skip
        try:
            return retrying(attempt)
        except (BotoCoreError, ClientError) as error:
            problem = f"bucket {self._bucket}, {name}: {error}"
            raise AccelCiError(f"{problem}; check its endpoint, credentials and policy") from error

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        left = self._patience_s - (state.seconds_since_start or 0.0)
        away = "bucket %s is away (%s); next try in %.1f s, giving up in %.0f s"
        _LOG.warning(away, self._bucket, error, state.upcoming_sleep, max(left, 0.0))


def open_bucket(
    bucket: str,
    prefix: str,
    cache: Path,
    endpoint: str | None,
    keys: Keys = (None, None),
    region: str | None = None,
    patience_s: float = 0.0,
) -> BucketStore:
    """Open a bucket; keys and a region that are None come from boto3's own chain (environment, profile, instance role)."""
    client = s3_client(
        s3_session(*keys, region), endpoint, tries=2 if patience_s else 5
    )  # who is patient reports each retry
    return BucketStore(client, bucket, prefix, cache, patience_s)


def media_type(name: str) -> str:
    """Return the type of an object by its name, for those that read it by HTTP: pip takes a page of an index by that."""
    return guess_type(name)[0] or "application/octet-stream"


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _before(first: str) -> str:
    """A text just before `first`: SeaweedFS takes a folder's name in `StartAfter` to come after all of its objects."""
    return f"{first[:-1]}{chr(ord(first[-1]) - 1)}~"


def _trim(cache: Path) -> None:
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in cache.rglob("*") if file.is_file())
    excess = sum(size for _, size, _ in files) - CACHE_BYTES
    for _, size, file in files:
        if excess <= 0:
            break
        file.unlink(missing_ok=True)
        excess -= size
