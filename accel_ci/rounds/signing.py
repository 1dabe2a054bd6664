"""Pre-signed URLs by the thousand: AWS Signature Version 4 in a query, as boto3 makes them at 0.4 ms each, in 0.02 ms.

Only what workers need: a `GET`, and a `PUT` that creates an object if it is absent.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

LONGEST_S = 7 * 24 * 3600
"""No signature holds for longer than a week."""


class Signer:
    """Signs URLs of one bucket, all from the same moment on."""

    def __init__(self, session: Any, client: Any, bucket: str, seconds: float, now: datetime | None = None) -> None:
        """Sign as `session` may for `seconds` from now; a week is the most that S3 grants."""
        probe = urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "x"}))
        self._scheme, self._host = probe.scheme, probe.netloc
        self._base = probe.path.removesuffix("x")
        keys = session.get_credentials().get_frozen_credentials()
        self._stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
        self._scope = f"{self._stamp[:8]}/{client.meta.region_name}/s3/aws4_request"
        key = f"AWS4{keys.secret_key}".encode()
        for part in self._scope.split("/"):
            key = _hmac(key, part)
        self._key = key
        self._query = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{keys.access_key}/{self._scope}",
            "X-Amz-Date": self._stamp,
            "X-Amz-Expires": str(int(min(seconds, LONGEST_S))),
        }
        if keys.token:
            self._query["X-Amz-Security-Token"] = keys.token

    def get(self, key: str) -> str:
        """A URL that reads an object."""
        return self._sign("GET", key, {})

    def create(self, key: str) -> str:
        """A URL that creates an object by a `PUT` with the header `If-None-Match: *`, without which it is refused."""
        return self._sign("PUT", key, {"if-none-match": "*"})

    def _sign(self, method: str, key: str, headers: dict[str, str]) -> str:
        path = self._base + quote(key, safe="/~")
        signed = {"host": self._host, **headers}
        names = ";".join(signed)
        query = "&".join(
            f"{name}={quote(value, safe='~')}"
            for name, value in sorted({**self._query, "X-Amz-SignedHeaders": names}.items())
        )
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        request = f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._stamp}\n{self._scope}\n{digest}"
        return f"{self._scheme}://{self._host}{path}?{query}&X-Amz-Signature={_hmac(self._key, text).hex()}"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
