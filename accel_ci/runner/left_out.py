"""Find what pytest's own means leave out of a collection, and who does it: options, conftest files, plug-ins. A plug-in."""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType
from typing import Any

import _pytest
import pytest

_MARKS = {"deselect_by_keyword": ("-k", "keyword"), "deselect_by_mark": ("-m", "markexpr")}
_MODULES = {"main": "--deselect", "cacheprovider": "--last-failed", "stepwise": "--stepwise"}
_PYTEST = Path(os.path.realpath(_pytest.__file__)).parent
_PLUGGY = Path(os.path.realpath(inspect.getfile(pytest.PytestPluginManager.__bases__[0]))).parent
_MACHINERY = (_PYTEST, _PLUGGY)
_OWN = str(Path(__file__).parent)


class LeftOut:
    """Counts tests that are collected and then left out, and finds the files that are ignored.

    `ignored` has who ignores a file, by its path below the root.
    """

    def __init__(self, root: str) -> None:
        """`root` is the folder of the sources."""
        self.ignored: dict[str, str] = {}
        self._root = Path(os.path.realpath(root))
        self._collected: Counter[str] = Counter()
        self._deselected: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(self, item: Any) -> None:
        """Count a test before anybody can leave it out."""
        self._collected[item.nodeid] += 1

    def pytest_deselected(self, items: Any) -> None:
        """Note who reports tests as deselected."""
        who = f"deselected by {self._deselecting(items)}"
        self._deselected.update((item.nodeid, who) for item in items)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_ignore_collect(self, collection_path: Any, config: Any) -> Any:
        """Note who ignores the files of tests at a path."""
        outcome = yield
        path = Path(collection_path)
        if outcome.get_result() and (who := self._ignoring(path, config)) is not None:
            for file in _test_files(path, config.getini("python_files")):
                self.ignored[self._relative(str(file))] = f"files ignored by {who}"

    def deselected(self, session: Any) -> dict[str, int]:
        """Return the number of tests that were collected and are not in the session any more, by who left them out."""
        silent = f"removed without a word by {self._hooks_of(session.config, 'pytest_collection_modifyitems')}"
        found: Counter[str] = Counter()
        for test, count in (self._collected - Counter(item.nodeid for item in session.items)).items():
            found[self._deselected.get(test, silent)] += count
        return dict(found)

    def _deselecting(self, items: Any) -> str:
        """Return who deselects the items: the innermost caller that passes no hook on."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_name in _MARKS and _is_below(code.co_filename, _PYTEST):
                option, name = _MARKS[code.co_name]
                return f"{option} {getattr(items[0].config.option, name, '')!r}"
            if code.co_name == "pytest_collection_modifyitems" and _is_below(code.co_filename, _PYTEST):
                return _MODULES.get(Path(code.co_filename).stem, "pytest")
            if not _is_machinery(code):
                return self._place(code)
            frame = frame.f_back
        return "a plug-in"

    def _ignoring(self, path: Path, config: Any) -> str | None:
        """Return who ignores a path; None where pytest does so by itself, as for virtual environments."""
        if any(_is_same(given, path) for given in config.getoption("ignore", None) or ()):
            return "--ignore"
        if any(fnmatch(str(path), str(given)) for given in config.getoption("ignore_glob", None) or ()):
            return "--ignore-glob"
        for file, name, entries in _ignored_by_conftests(config):
            patterns = [str(Path(file).parent / str(entry)) for entry in entries]
            if any(_is_same(pattern, path) or fnmatch(str(path), pattern) for pattern in patterns):
                return f"{name} in {self._relative(file)}"
        by_itself = getattr(sys.modules.get("_pytest.main"), "pytest_ignore_collect", None)
        if by_itself is not None and by_itself(path, config):
            return None
        return self._hooks_of(config, "pytest_ignore_collect")

    def _hooks_of(self, config: Any, hook: str) -> str:
        """Name the functions, other than pytest's and the runner's, that are called for a hook."""
        functions = (implementation.function for implementation in getattr(config.hook, hook).get_hookimpls())
        codes = (getattr(function, "__code__", None) for function in functions)
        return ", ".join(sorted({self._place(code) for code in codes if code and not _is_machinery(code)})) or "a plug-in"

    def _place(self, code: CodeType) -> str:
        return f"{code.co_name} in {self._relative(code.co_filename)}"

    def _relative(self, file: str) -> str:
        """Name a file below the root, or a module elsewhere."""
        if not _is_below(file, self._root):
            return "/".join(Path(file).parts[-2:])
        return os.path.relpath(os.path.realpath(file), self._root)


def _ignored_by_conftests(config: Any) -> Iterable[tuple[str, str, Iterable[Any]]]:
    """Yield the file of each conftest with `collect_ignore` or `collect_ignore_glob`, that name, and its entries."""
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "__file__", None)
        for name in ("collect_ignore", "collect_ignore_glob"):
            if file and Path(file).name == "conftest.py" and getattr(plugin, name, None):
                yield file, name, getattr(plugin, name)


def _is_same(given: str | Path, path: Path) -> bool:
    return os.path.realpath(given) == os.path.realpath(path)


def _is_below(file: str, folder: Path) -> bool:
    return folder in Path(os.path.realpath(file)).parents


def _is_machinery(code: CodeType) -> bool:
    """Return whether code is of the runner, of pytest or of its hooks."""
    return str(code.co_filename).startswith(_OWN) or any(_is_below(code.co_filename, folder) for folder in _MACHINERY)


def _test_files(path: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files of tests at a path, or below it, by the suite's patterns for their names."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return [file for file in files if any(fnmatch(file.name, pattern) for pattern in patterns)]
