"""A pod's first program, passed as text to `python -c`: standard library only, any Python from 3.9.

An errand, a JSON object at a signed URL, lists what to unpack where and what to run; its result is uploaded to a signed URL.
A container that runs before the others does its part `sources`: it unpacks what the others can only read.
A worker has no result: the runner takes over this process. Nothing here depends on Kubernetes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import http.client
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from typing import Any

PATIENCE_S = 900.0


def ask(request: Any, what: str) -> bytes:
    """The body of an answer. Waits for a store that is away; never prints a URL."""
    deadline = time.monotonic() + PATIENCE_S
    pause_s = 0.5
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 409, 425, 429):
                sys.exit(f"accel-ci: the store refused {what} with status {error.code}; a signed URL may have expired")
            problem = f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", error))
        if time.monotonic() > deadline:
            sys.exit(f"accel-ci: the store gave no {what} for {PATIENCE_S:g} s; last: {problem}")
        time.sleep(pause_s)
        pause_s = min(10.0, pause_s * 2)


def unpack(archive: bytes, folder: str) -> None:
    """Unpack a tar file from the driver into a folder."""
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    trusted: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, **trusted)  # noqa: S202 (links may lead anywhere, as they do in the sources)


def pack(folder: str) -> bytes:
    """A folder as a gzipped tar file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(folder, arcname=".")
    return packed.getvalue()


def main() -> None:
    """Do the errand at `ACCEL_CI_ERRAND_URL`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 of a container has no default for it
    errand = json.loads(gzip.decompress(ask(os.environ.pop("ACCEL_CI_ERRAND_URL"), "the errand")))
    if os.environ.pop("ACCEL_CI_PART", "") == "sources":
        url, folder = errand["sources"]
        unpack(ask(url, "the sources"), folder)
        return
    for url, folder in errand["unpack"]:
        unpack(ask(url, "an archive"), folder)
    for name in errand["unset"]:
        os.environ.pop(name, None)
    os.chdir(errand["root"])
    command = errand["command"]
    if errand["result"] is None:
        os.environ["ACCEL_CI_ROUND_URL"] = errand["round"]
        pod, node = (os.environ.pop(name, os.uname().nodename) for name in ("ACCEL_CI_POD", "ACCEL_CI_NODE"))
        sys.argv = [*command, "--identity", pod, "--host", node]
        sys.path[0] = ""
        runpy.run_path(command[0], run_name="__main__")
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the command must not read our signed URLs
    done = subprocess.run(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    report = {"status": done.returncode, "output": done.stdout[-100_000:].decode("utf-8", "replace")}
    for url, body in ((errand["result"][0], pack(errand["folder"])), (errand["result"][1], json.dumps(report).encode())):
        request = urllib.request.Request(url, body, {"If-None-Match": "*"}, method="PUT")  # noqa: S310
        try:
            ask(request, "room for a result")
        except SystemExit as refused:
            if "412" not in str(refused):  # uploaded before: by this pod, whose answer was lost, or by another one
                raise


if __name__ == "__main__":
    main()
