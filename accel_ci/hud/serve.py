"""Serve the HUD's folder and the artifacts on loopback, read-only, so that pages of the Dagster UI can link to them.

`/artifacts/<digest>/<name>` is an artifact. Code under test made many of them, so none is more than plain text to a browser.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from accel_ci.errors import AccelCiError
from accel_ci.model import Artifact
from accel_ci.storage.artifacts import ArtifactStore

HOST = "127.0.0.1"
DEFAULT_ADDRESS = f"http://{HOST}:3001/"
"""The address beside the default port of the UI."""

_NAMES = frozenset({HOST, "localhost"})
_SILENT_S = 30.0
_READ_AS_TEXT = frozenset({".json", ".log", ".ndjson", ".txt", ".xml"})


def artifact_address(server: str, artifact: Artifact) -> str:
    """Return the address of an artifact on the server at that address."""
    return f"{server}artifacts/{artifact.sha256}/{quote(artifact.name, safe='')}"


class HudServer(ThreadingHTTPServer):
    """Answers GET and HEAD for regular files of one folder, and for artifacts."""

    daemon_threads = True

    def __init__(self, folder: Path, artifacts: ArtifactStore, port: int) -> None:
        """Listen on the port, or on any free one for 0. Raises `OSError` when it is taken."""
        self.folder, self.artifacts = folder, artifacts
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def start(self) -> None:
        """Serve in a thread until the process ends."""
        Thread(target=self.serve_forever, name="hud", daemon=True).start()


class _Handler(SimpleHTTPRequestHandler):
    server: HudServer
    timeout = _SILENT_S
    server_version, sys_version = "accel_ci", ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].folder), **options)

    def guess_type(self, path: Any) -> str:
        """The page is UTF-8."""
        found = super().guess_type(path)
        return f"{found}; charset=utf-8" if found.startswith("text/") else found

    def send_head(self) -> Any:
        """Refuse other names of this machine (a page of another site may have its name point here) and other files."""
        if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        match urlsplit(self.path).path.split("/"):
            case ["", "artifacts", digest, name]:
                return self._send_artifact_head(Artifact(unquote(digest), unquote(name), 0))
        if self._file() is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def _send_artifact_head(self, artifact: Artifact) -> Any:
        root = self.server.artifacts.root.resolve()
        try:
            file = self.server.artifacts.path(artifact).resolve()
            content = file.open("rb") if file.is_relative_to(root) else None
        except (AccelCiError, OSError, ValueError):
            content = None
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        is_text = Path(artifact.name).suffix in _READ_AS_TEXT
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if is_text else "application/octet-stream")
        self.send_header("Content-Length", str(os.fstat(content.fileno()).st_size))
        self.send_header("Content-Security-Policy", "default-src 'none'; sandbox")
        if not is_text:
            self.send_header("Content-Disposition", f"attachment; filename*=UTF-8''{quote(artifact.name, safe='')}")
        self.end_headers()
        return content

    def _file(self) -> Path | None:
        """The regular file that the request names, links followed; None when there is none inside the folder."""
        try:
            file = Path(self.translate_path(self.path)).resolve()
            file = file / "index.html" if file.is_dir() else file
            inside = file.resolve().is_relative_to(self.server.folder.resolve())
            return file if inside and file.is_file() else None
        except (OSError, ValueError):
            return None

    def end_headers(self) -> None:
        """Have browsers ask for the newest page each time, take no file for another type, and embed none in other sites."""
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""
