"""Make clients of any S3 store, all with the same limits, retries and sources of credentials.

boto3 is imported when a client is made, because most users have a folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from accel_ci.config.extras import require_extra
from accel_ci.errors import AccelCiError

ACCESS_KEY_ENVIRONMENT = "ACCEL_CI_S3_ACCESS_KEY"
SECRET_KEY_ENVIRONMENT = "ACCEL_CI_S3_SECRET_KEY"  # noqa: S105 (a variable's name)

Keys = tuple[str | None, str | None]
"""The access key and the secret key."""


def s3_session(access_key: str | None = None, secret_key: str | None = None, region: str | None = None) -> Any:
    """Make a session; arguments that are None come from boto3's own chain (environment, profile, instance role)."""
    require_extra("s3", "an S3 bucket")
    import boto3  # type: ignore[import-untyped]

    return boto3.session.Session(aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region)


def s3_client(
    session: Any, endpoint: str | None = None, *, connections: int = 10, tries: int = 5, read_s: float = 60
) -> Any:
    """Make a client, which threads may share over at most `connections` connections; it tries each request `tries` times."""
    from botocore.config import Config  # type: ignore[import-untyped]

    settings = Config(
        connect_timeout=5,
        read_timeout=read_s,
        retries={"mode": "standard", "max_attempts": tries},
        max_pool_connections=connections,
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    region = session.region_name or ("us-east-1" if endpoint else None)
    return session.client("s3", endpoint_url=endpoint, region_name=region, config=settings)


def is_transient(error: BaseException) -> bool:
    """Return True for a failure of S3 that may pass by itself."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # type: ignore[import-untyped]

    if not isinstance(error, (BotoCoreError, ClientError)) or isinstance(error, NoCredentialsError):
        return False
    return (status := status_of(error)) in (0, 409, 429) or status >= 500


def status_of(error: Any) -> int:
    """Return the HTTP status of an answer of S3; 0 where there was none."""
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def check_bucket(session: Any, endpoint: str | None, bucket: str, prefix: str) -> str:
    """Check that a bucket can be reached, written, read and deleted from, and that it refuses a `PUT` by its conditions.

    Takes seconds, and leaves nothing. Raises `AccelCiError` with what is wrong.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    client = s3_client(session, endpoint, tries=2, read_s=10)
    key = f"{prefix.strip('/')}/.check-{uuid.uuid4().hex}".lstrip("/")
    conditions = {"IfNoneMatch": "*"}, {"IfMatch": f'"{"0" * 32}"'}
    where = f"bucket {bucket}{f' at {endpoint}' if endpoint else ''}"

    def is_refused(condition: Mapping[str, str]) -> bool:
        try:
            client.put_object(Bucket=bucket, Key=key, Body=b"", **condition)
        except ClientError as error:
            if status_of(error) != 412:
                raise
            return True
        return False

    try:
        client.list_objects_v2(Bucket=bucket, MaxKeys=1)  # first: some stores make a bucket for an object
        client.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")
        try:
            ignored = [name for condition in conditions for name in condition if not is_refused(condition)]
            client.get_object(Bucket=bucket, Key=key)["Body"].read()
        finally:
            client.delete_object(Bucket=bucket, Key=key)
    except (BotoCoreError, ClientError) as error:
        raise AccelCiError(f"{where}: {error}; check its endpoint, credentials and policy") from error
    if ignored:
        raise AccelCiError(
            f"{where} ignores {' and '.join(ignored)} of PUT; writers would overwrite each other: take another"
        )
    return where


def environment_keys() -> Keys:
    """The access key and the secret key from the variables of accel-ci, if set."""
    return os.environ.get(ACCESS_KEY_ENVIRONMENT), os.environ.get(SECRET_KEY_ENVIRONMENT)
