"""Show the progress of long work: bars on a terminal, plain lines everywhere else.

The caller of a pipeline chooses: the command line shows bars on a terminal, and a Dagster run writes lines, which go to its
compute log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from accel_ci.redaction import redact


class Step(Protocol):
    """One piece of work in progress."""

    def total(self, count: int) -> None:
        """Set the number of parts."""

    def advance(self, note: str = "", count: int = 1) -> None:
        """Count `count` more finished parts; `note` describes the current state."""

    def note(self, text: str) -> None:
        """Describe the current state."""

    def say(self, text: str) -> None:
        """Show right away what the step waits for, even where normally only its end is shown."""


class LineProgress:
    """Plain lines: at the start of a step, after about every tenth of its parts, and at its end."""

    def __init__(self, write: Callable[[str], None] = print) -> None:
        self._write: Callable[[str], None] = lambda text: write(redact(text))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step until the context ends."""
        started = time.monotonic()
        self._write(f"{title} …")
        step = _LineStep(title, self._write)
        try:
            yield step
        except BaseException:
            self._write(f"{title}: stopped after {time.monotonic() - started:.1f} s")
            raise
        self._write(f"{title}: {step.last_note or 'done'} ({time.monotonic() - started:.1f} s)")


class _LineStep:
    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title, self._write = title, write
        self._total = self._done = 0
        self.last_note = ""

    def total(self, count: int) -> None:
        self._total = count

    def advance(self, note: str = "", count: int = 1) -> None:
        tenth = max(1, self._total // 10)
        before, self._done = self._done // tenth, self._done + count
        self.last_note = note or self.last_note
        if self._done // tenth > before and self._done < self._total:
            self._write(f"{self._title}: {self._done}/{self._total} {self.last_note}".rstrip())

    def note(self, text: str) -> None:
        self.last_note = text

    def say(self, text: str) -> None:
        self._write(f"{self._title}: {text}")


class BarProgress:
    """Bars on a terminal; a finished step stays as a line with its time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step until the context ends."""
        started = time.monotonic()
        name, note = TextColumn("{task.description:<24}"), TextColumn("{task.fields[note]}")
        columns = SpinnerColumn(), name, BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), note
        mark = "[red]✗[/]"
        with Bars(*columns, console=self._console, transient=True) as bars:
            step = _BarStep(bars, bars.add_task(title, total=None, note=""))
            try:
                yield step
                mark = "[green]✓[/]"
            finally:
                bars.stop()
                elapsed = time.monotonic() - started
                self._console.print(
                    f"{mark} {escape(title):<24} {elapsed:7.1f} s  {escape(step.last_note)}", highlight=False
                )


class _BarStep:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars, self._task = bars, task
        self.last_note = ""

    def total(self, count: int) -> None:
        self._bars.update(self._task, total=count)

    def advance(self, note: str = "", count: int = 1) -> None:
        self.last_note = note or self.last_note
        self._bars.update(self._task, advance=count, note=escape(self.last_note))

    def note(self, text: str) -> None:
        self.last_note = text
        self._bars.update(self._task, note=escape(text))

    def say(self, text: str) -> None:
        self._bars.update(self._task, note=escape(text))


Progress: TypeAlias = LineProgress | BarProgress
"""A display of steps."""
