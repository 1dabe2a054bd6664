"""A bucket of any S3 that holds `If-None-Match` and `If-Match` on `PUT`, as a place for the store's files.

Objects are written by one conditional `PUT`, so that a writer replaces what it has seen or tries again, and read through a
local cache by ETag.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from accel_ci.errors import AccelCiError
from accel_ci.storage.atomic_file import whole_file
from accel_ci.storage.object_store import Entry
from accel_ci.storage.s3 import s3_client, s3_session

TRIES = 8
"""How often a `PUT` is tried when others write the same object at the same time."""

CACHE_BYTES = 20 << 30
"""Above this the cache loses the files that were not used for longest."""


class BucketStore:
    """The objects below a prefix of a bucket."""

    def __init__(self, client: Any, bucket: str, prefix: str, cache: Path) -> None:
        self._client, self._bucket, self._cache = client, bucket, cache
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._trimmed = False

    def list(self, folder: str, first: str, last: str) -> list[Entry]:
        """See `accel_ci.storage.object_store.Place`."""
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
        """See `accel_ci.storage.object_store.Place`."""
        with self._explained(name):
            try:
                head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.ClientError as error:
                if _status(error) == 404:
                    return None
                raise
        return Entry(name, head["ETag"].strip('"'), head["ContentLength"])

    def fetch(self, entry: Entry) -> Path:
        """See `accel_ci.storage.object_store.Place`."""
        path = self._cache / entry.version / entry.name
        if path.is_file():
            os.utime(path)
            return path
        if not self._trimmed:
            _trim(self._cache)
            self._trimmed = True
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained(entry.name):
            try:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._prefix + entry.name, IfMatch=f'"{entry.version}"'
                )
            except self._client.exceptions.ClientError as error:
                if _status(error) in (404, 412):
                    raise FileNotFoundError(entry.name) from None
                raise
            with whole_file(path) as file:
                file.writelines(answer["Body"].iter_chunks(1 << 20))
        return path

    def put(self, name: str, content: pa.Buffer) -> Entry:
        """See `accel_ci.storage.object_store.Place`. Raises `AccelCiError` when others keep writing the same object."""
        data = content.to_pybytes()
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        for _ in range(TRIES):
            there = self.find(name)
            if there is not None and there.version == digest:
                return there
            condition = {"IfNoneMatch": "*"} if there is None else {"IfMatch": f'"{there.version}"'}
            with self._explained(name):
                try:
                    answer = self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, **condition)
                except self._client.exceptions.ClientError as error:
                    if _status(error) in (404, 409, 412):
                        continue
                    raise
            return Entry(name, answer["ETag"].strip('"'), len(data))
        raise AccelCiError(f"{name} in bucket {self._bucket} changed under {TRIES} writes; let one process write a build")

    def delete(self, name: str) -> None:
        """See `accel_ci.storage.object_store.Place`."""
        with self._explained(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn what boto3 raises into an error that says what to look at."""
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            problem = f"bucket {self._bucket}, {name}: {error}"
            raise AccelCiError(f"{problem}; look at endpoint, credentials and policy") from error


def open_bucket(
    bucket: str,
    prefix: str,
    cache: Path,
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    region: str | None = None,
) -> BucketStore:
    """A bucket; what is not given comes from boto3's own chain (environment, profile, instance role)."""
    client = s3_client(s3_session(access_key, secret_key, region), endpoint)
    return BucketStore(client, bucket, prefix, cache)


def _before(first: str) -> str:
    """A text shortly before `first`: to SeaweedFS, `StartAfter` a folder's name is after all that the folder holds."""
    return f"{first[:-1]}{chr(ord(first[-1]) - 1)}~"


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _trim(cache: Path) -> None:
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in cache.rglob("*") if file.is_file())
    excess = sum(size for _, size, _ in files) - CACHE_BYTES
    for _, size, file in files:
        if excess <= 0:
            break
        file.unlink(missing_ok=True)
        excess -= size
