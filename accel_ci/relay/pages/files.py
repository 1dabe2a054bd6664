"""Serve the folder of the pages: GET and HEAD, with validators, and nothing that begins with a dot or is outside of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles


class PagesFiles(StaticFiles):
    """The files of the pages. starlette refuses other methods, and paths and links that lead out of the folder."""

    def __init__(self, folder: Path) -> None:
        """The folder may be made later."""
        super().__init__(directory=folder, check_dir=False)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; the folder itself stands for its first page."""
        name = "index.html" if path in ("", ".") else path
        if "\0" in name or any(part.startswith(".") for part in name.split("/")):
            return "", None
        return super().lookup_path(name)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """Have browsers ask for the newest page each time, and take no file for another type."""
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
