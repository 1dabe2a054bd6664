"""The report of a collecting process to the one that started it: a pytest plugin that names each file before its import."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from .collect import COLLECTED


class CollectionReport:
    """Reports places relative to the root: files of tests, and folders whose conftest.py is imported."""

    def __init__(self, descriptor: int, root: str) -> None:
        """Report through the socket `descriptor`."""
        os.set_inheritable(descriptor, False)  # to programs that tests start
        self.complete = False
        self._socket = socket.socket(fileno=descriptor)
        self._root, self._owner = os.path.realpath(root), os.getpid()
        sys.addaudithook(self._audit)

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: Any) -> None:
        """Report a file."""
        if isinstance(collector, pytest.File):
            self._report(os.path.relpath(collector.path, self._root))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self) -> None:
        """Report that nothing more is to be imported."""
        self._report(COLLECTED)
        self.complete = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            file = Path(getattr(arguments[0], "co_filename", ""))
            if file.name == "conftest.py":
                self._report(os.path.relpath(file.parent, self._root))

    def _report(self, place: str) -> None:
        """Wait until the place is recorded, so that the record is right whatever the file does to either process."""
        if os.getpid() == self._owner:
            self._socket.sendall(json.dumps(place).encode("ascii") + b"\n")
            if not self._socket.recv(1):
                os._exit(1)
