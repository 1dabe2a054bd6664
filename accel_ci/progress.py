"""Telling a person what long work is doing: bars on a terminal, plain lines everywhere else.

Pipeline code speaks to the `Progress` protocol alone. Which kind it gets is the caller's choice: the command line gives bars
on a terminal, a Dagster run gets lines, which land in its compute log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Step(Protocol):
    """One piece of work in progress."""

    def total(self, count: int) -> None:
        """Say how many parts there are."""

    def advance(self, note: str = "", count: int = 1) -> None:
        """Count more parts as done; `note` is the state they lead to."""

    def note(self, text: str) -> None:
        """Say how it stands."""

    def say(self, text: str) -> None:
        """Say now what holds it up, also where only the end of a step is written."""


class Progress(Protocol):
    """Where steps are announced."""

    def step(self, title: str) -> AbstractContextManager[Step]:
        """Announce a step for as long as the context lasts."""


class LineProgress:
    """Plain lines: when a step begins, about every ten per cent of its parts, and when it ends."""

    def __init__(self, write: Callable[[str], None] = print) -> None:
        self._write = write

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Announce a step."""
        started = time.monotonic()
        self._write(f"{title} …")
        step = _LineStep(title, self._write)
        try:
            yield step
        except BaseException:
            self._write(f"{title}: stopped after {time.monotonic() - started:.1f} s")
            raise
        self._write(f"{title}: {step.said or 'done'} ({time.monotonic() - started:.1f} s)")


class _LineStep:
    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title, self._write = title, write
        self._total = self._done = 0
        self.said = ""

    def total(self, count: int) -> None:
        self._total = count

    def advance(self, note: str = "", count: int = 1) -> None:
        tenth = max(1, self._total // 10)
        before, self._done = self._done // tenth, self._done + count
        self.said = note or self.said
        if self._done // tenth > before and self._done < self._total:
            self._write(f"{self._title}: {self._done}/{self._total} {self.said}".rstrip())

    def note(self, text: str) -> None:
        self.said = text

    def say(self, text: str) -> None:
        self._write(f"{self._title}: {text}")


class BarProgress:
    """Bars on a terminal; finished steps stay as a line with their time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Announce a step."""
        started = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        mark = "[red]✗[/]"
        with Bars(*columns, console=self._console, transient=True) as bars:
            step = _BarStep(bars, bars.add_task(title, total=None, note=""))
            try:
                yield step
                mark = "[green]✓[/]"
            finally:
                bars.stop()
                elapsed = time.monotonic() - started
                self._console.print(f"{mark} {escape(title):<24} {elapsed:7.1f} s  {escape(step.said)}", highlight=False)


class _BarStep:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars, self._task = bars, task
        self.said = ""

    def total(self, count: int) -> None:
        self._bars.update(self._task, total=count)

    def advance(self, note: str = "", count: int = 1) -> None:
        self.said = note or self.said
        self._bars.update(self._task, advance=count, note=escape(self.said))

    def note(self, text: str) -> None:
        self.said = text
        self._bars.update(self._task, note=escape(text))

    def say(self, text: str) -> None:
        self._bars.update(self._task, note=escape(text))
