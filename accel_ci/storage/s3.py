"""Make clients of any S3 store, all with the same limits, retries and sources of credentials.

boto3 is imported when a client is made, because most users have a folder.
"""

from __future__ import annotations

import os
from typing import Any

from accel_ci.config.extras import require_extra

ACCESS_KEY_ENVIRONMENT = "ACCEL_CI_S3_ACCESS_KEY"
SECRET_KEY_ENVIRONMENT = "ACCEL_CI_S3_SECRET_KEY"  # noqa: S105 (a variable's name)

Keys = tuple[str | None, str | None]
"""The access key and the secret key."""


def s3_session(access_key: str | None = None, secret_key: str | None = None, region: str | None = None) -> Any:
    """Make a session; arguments that are None come from boto3's own chain (environment, profile, instance role)."""
    require_extra("s3", "an S3 bucket")
    import boto3  # type: ignore[import-untyped]

    return boto3.session.Session(aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region)


def s3_client(session: Any, endpoint: str | None = None, *, connections: int = 10) -> Any:
    """Make a client, which threads may share over at most `connections` connections."""
    from botocore.config import Config  # type: ignore[import-untyped]

    settings = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 5},
        max_pool_connections=connections,
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    region = session.region_name or ("us-east-1" if endpoint else None)
    return session.client("s3", endpoint_url=endpoint, region_name=region, config=settings)


def environment_keys() -> Keys:
    """The access key and the secret key from the variables of accel-ci, if set."""
    return os.environ.get(ACCESS_KEY_ENVIRONMENT), os.environ.get(SECRET_KEY_ENVIRONMENT)
