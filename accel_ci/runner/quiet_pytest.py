"""Run pytest as its users know it, beside a card: every plug-in and option stays, and nothing disturbs other workers.

Here belongs what differs from a pytest that a person starts: its report goes nowhere, its cache lies in a scratch folder,
it starts no further workers, and a configuration outside the sources is not used. The order of tests and their outcomes
do not belong here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class _OutsideConfigurationError(Exception):
    """pytest has found an ini-file above the root of the sources, which is not of the suite."""


class QuietPytest:
    """The pytest plugin. `dist` is how the suite asks pytest-xdist to spread its tests, such as `loadfile`."""

    def __init__(self, root: str, scratch: Path) -> None:
        """`root` is the folder of the sources; `scratch` belongs to this process alone."""
        self.dist = "no"
        self._root, self._scratch = os.path.realpath(root), scratch
        self._terminal: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: Any) -> None:
        """Refuse an ini-file outside the sources before any conftest is imported. Raises `_OutsideConfigurationError`."""
        inside = Path(self._root)
        ini = early_config.inipath
        if ini is not None and not {inside, self._scratch} & set(Path(os.path.realpath(ini)).parents):
            raise _OutsideConfigurationError

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: Any) -> None:
        """Keep pytest-xdist from starting processes, and workers from deleting each other's temporary files."""
        option = config.option
        self.dist = getattr(option, "dist", "no")
        for name, off in (("numprocesses", None), ("dist", "no"), ("tx", []), ("looponfail", False)):
            if hasattr(option, name):
                setattr(option, name, off)
        if getattr(option, "basetemp", None):
            option.basetemp = str(Path(option.basetemp, str(os.getpid())))
            Path(option.basetemp).parent.mkdir(parents=True, exist_ok=True)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: Any) -> None:
        """Move the cache out of the sources."""
        if hasattr(config, "cache"):
            config.cache._cachedir = self._scratch / "pytest_cache"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_sessionstart(self, session: Any) -> Any:
        """Silence the terminal reporter. It stays, because assertions and plug-ins use it (pytest-dev/pytest#14377)."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and hasattr(reporter, "_tw"):
            self._terminal = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
            reporter._tw._file = self._terminal
            reporter.reportchars = ""  # or its summary would measure every message, 1.5 s for each megabyte
        yield


def run_pytest(root: str, scratch: Path, arguments: Sequence[str], plugins: Sequence[Any]) -> int:
    """Run pytest in the current folder with `QuietPytest`, which must be among the plugins; return its exit code."""
    try:
        return int(pytest.main([*arguments], plugins=[*plugins]))
    except _OutsideConfigurationError:
        scratch.mkdir(parents=True, exist_ok=True)
        empty = scratch / "pytest.ini"
        empty.write_text("[pytest]\n", "ascii")
        options = [f"--rootdir={root}", f"--confcutdir={root}", "-c", str(empty)]
        return int(pytest.main([*options, *arguments], plugins=[*plugins]))
