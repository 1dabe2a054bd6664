"""Serve the HUD's folder on loopback, read-only, so that pages of the Dagster UI can link to it."""

from __future__ import annotations

from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

HOST = "127.0.0.1"
DEFAULT_ADDRESS = f"http://{HOST}:3001/"
"""The address beside the default port of the UI."""

_NAMES = frozenset({HOST, "localhost"})
_SILENT_S = 30.0


class HudServer(ThreadingHTTPServer):
    """Answers GET and HEAD for regular files of one folder."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        """Listen on the port, or on any free one for 0. Raises `OSError` when it is taken."""
        self.folder = folder
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
        if self._file() is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

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
        """Have browsers ask for the newest page each time, and take no file for another type."""
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""
