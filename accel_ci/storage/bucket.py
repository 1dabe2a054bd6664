"""Keep the store's files in a bucket of any S3 that supports `If-None-Match` and `If-Match` on `PUT`.

An object is written by one conditional `PUT`, so that a writer replaces the version that it has seen or tries again. It is
read through a local cache by ETag.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from tenacity import (
    RetryError,
    before_sleep_log,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import whole_file
from accel_ci.storage.object_store import Entry
from accel_ci.storage.s3 import Keys, s3_client, s3_session

TRIES = 8
"""The number of times that a `PUT` is tried while others write the same object."""

CACHE_BYTES = 20 << 30
"""The size above which the cache drops the files that were used least recently."""

_LOG = logging.getLogger(__name__)


class _ChangedError(Exception):
    """Another writer changed the object between this writer's look at it and its write."""


class BucketStore:
    """The objects below a prefix of a bucket."""

    def __init__(self, client: Any, bucket: str, prefix: str, cache: Path) -> None:
        self._client, self._bucket, self._cache = client, bucket, cache
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._trimmed = False

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """See `ObjectStore`."""
        top = f"{self._prefix}{folder}/" if folder else self._prefix
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=top, StartAfter=top + _before(first)
        )
        found: list[Entry] = []
        with self._explained(top):
            for page in pages:
                for item in page.get("Contents", ()):
                    part, _, file = item["Key"].removeprefix(top).partition("/")
                    if part > last:
                        return found
                    if first <= part and file and "/" not in file:
                        found.append(Entry(item["Key"].removeprefix(self._prefix), item["ETag"].strip('"'), item["Size"]))
        return found

    def find(self, name: str) -> Entry | None:
        """See `ObjectStore`."""
        try:
            with self._explained(name, {404: FileNotFoundError(name)}):
                head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
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
        key, gone = self._prefix + entry.name, FileNotFoundError(entry.name)
        with self._explained(entry.name, {404: gone, 412: gone}):
            answer = self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=f'"{entry.version}"')
            with whole_file(path) as file:
                file.writelines(answer["Body"].iter_chunks(1 << 20))
        return path

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """See `ObjectStore`. Raises `AccelCiError` if others keep writing the same object."""
        try:
            return self._put(name, content.to_pybytes())
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
        if there is not None and there.version == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return there
        condition = {"IfNoneMatch": "*"} if there is None else {"IfMatch": f'"{there.version}"'}
        with self._explained(name, dict.fromkeys((404, 409, 412), _ChangedError(name))):
            answer = self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, **condition)
        return Entry(name, answer["ETag"].strip('"'), len(data))

    def delete(self, name: str) -> None:
        """See `ObjectStore`."""
        with self._explained(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @contextlib.contextmanager
    def _explained(self, name: str, refusals: Mapping[int, Exception] = MappingProxyType({})) -> Iterator[None]:
        """Turn errors of boto3 into one that says what to check, but answers with a status in `refusals` into those."""
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            answer = getattr(error, "response", {})
            if refusal := refusals.get(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)):
                raise refusal from None
            problem = f"bucket {self._bucket}, {name}: {error}"
            raise AccelCiError(f"{problem}; check its endpoint, credentials and policy") from error


def open_bucket(
    bucket: str, prefix: str, cache: Path, endpoint: str | None, keys: Keys = (None, None), region: str | None = None
) -> BucketStore:
    """Open a bucket; keys and a region that are None come from boto3's own chain (environment, profile, instance role)."""
    return BucketStore(s3_client(s3_session(*keys, region), endpoint), bucket, prefix, cache)


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
