"""Failures of steps that pass by themselves, from real clients of stores that are away."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import dagster as dg
import pytest
import sqlalchemy

from accel_ci.defs.outages import is_outage, retrying_outages
from accel_ci.errors import AccelCiError
from accel_ci.redaction import OF_THIS_PROCESS
from accel_ci.storage.s3 import s3_client, s3_session
from accel_ci_tests.fixtures.graphql_server import free_port


def ask_s3(endpoint: str) -> None:
    client = s3_client(s3_session("key", "secret"), endpoint, tries=1)
    try:
        client.get_object(Bucket="bucket", Key="name")
    except Exception as error:
        raise AccelCiError("the bucket cannot be read") from error


def s3_is_away() -> None:
    ask_s3(f"http://127.0.0.1:{free_port()}")


def database_is_away() -> None:
    sqlalchemy.create_engine(f"postgresql+psycopg2://user@127.0.0.1:{free_port()}/none").connect()


def answering(status: int) -> Callable[[], None]:
    """Make a request to an S3 server that answers with a status."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    def ask() -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            ask_s3(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            server.server_close()

    return ask


def a_missing_file() -> None:
    Path("/nonexistent").read_text()


@pytest.mark.parametrize(
    ("fail", "passes"),
    [
        (s3_is_away, True),
        (database_is_away, True),
        (answering(500), True),
        (answering(503), True),
        (answering(403), False),
        (answering(404), False),
        (a_missing_file, False),
    ],
)
def test_only_stores_that_are_away_are_outages(fail: Callable[[], None], passes: bool) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (of any kind)
        fail()
    assert is_outage(caught.value) == passes
    with pytest.raises(dg.RetryRequested if passes else type(caught.value)), retrying_outages(2, wait_s=0):
        fail()
    with pytest.raises(type(caught.value)), retrying_outages(0):
        fail()


def test_the_reason_of_a_retry_has_no_secrets() -> None:
    OF_THIS_PROCESS.learn(["s3cr3t-value"])

    def fail() -> None:
        try:
            s3_is_away()
        except AccelCiError as error:
            raise AccelCiError("refused s3cr3t-value") from error

    with pytest.raises(dg.RetryRequested) as caught, retrying_outages(2, wait_s=0):
        fail()
    assert "refused" in str(caught.value)
    assert "s3cr3t-value" not in str(caught.value)
    assert caught.value.__cause__ is None
