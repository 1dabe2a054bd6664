"""Apply a series of patches to a source tree in order, skipping those that it already has.

The file `series` in the patch folder gives the order (one name per line, `#` starts a comment). Without it, the `*.patch`
and `*.diff` files are applied in the order of their names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from accel_ci.errors import SourceError
from accel_ci.process.run import run_apart

_LIMIT_S = 120
_FAILED = re.compile(r"^error: patch failed: (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class AppliedSeries:
    """The patch names of a series in order, and those that the sources already had."""

    names: tuple[str, ...]
    already: tuple[str, ...]


def read_series(folder: Path) -> tuple[Path, ...]:
    """The patches of a folder in order. Raises `SourceError` if there are none, or if a listed one is missing."""
    series = folder / "series"
    if series.is_file():
        lines = (line.partition("#")[0].strip() for line in series.read_text("utf-8", "replace").splitlines())
        patches = tuple(folder / line for line in lines if line)
    else:
        patches = tuple(sorted(path for path in folder.glob("*") if path.suffix in (".patch", ".diff")))
    if not patches:
        raise SourceError(f"{folder} has no patches; add *.patch files, or remove the key `patches` from the configuration")
    for patch in patches:
        if not patch.resolve().is_relative_to(folder.resolve()) or not patch.is_file():
            raise SourceError(f"{series} lists {patch.name}, which is not in its folder; add the file or remove the line")
    return patches


def apply_series(patches: tuple[Path, ...], tree: Path) -> AppliedSeries:
    """Apply patches to the files below `tree` in order, skipping those that are already applied.

    Raises `SourceError` with the patch, the file and the hunk if one does not apply. The tree is then partly patched.
    """
    already = []
    for patch in patches:
        if (refusal := _apply(patch, tree)) is None:  # git applies all of a patch or nothing of it
            continue
        if _apply(patch, tree, "--check", "--reverse") is not None:
            raise SourceError(_explain(patch, refusal))
        already.append(patch.name)
    return AppliedSeries(tuple(patch.name for patch in patches), tuple(already))


def _apply(patch: Path, tree: Path, *options: str) -> str | None:
    """Apply a patch; returns git's error message, or None if the patch applied."""
    # Outside a repository, git applies patches to plain files; the ceiling keeps git from finding a repository further up.
    environment = {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "LC_ALL": "C"}
    environment["PATH"] = os.environ.get("PATH", os.defpath)
    command = ["git", "apply", "--verbose", *options, "--", str(patch.resolve())]
    try:
        done = run_apart(command, timeout_s=_LIMIT_S, environment=environment, folder=tree)
    except FileNotFoundError:
        raise SourceError("git is not installed; install it and try again") from None
    except TimeoutExpired:
        raise SourceError(f"{patch.name}: git apply did not finish within {_LIMIT_S} s") from None
    return None if done.returncode == 0 else done.stderr.strip() or "no message"


def _explain(patch: Path, refusal: str) -> str:
    """Turn git's error message into one that names the patch, the file and the hunk."""
    advice = f"rebase {patch.name} on the sources of this revision, or remove it from the series"
    if match := _FAILED.search(refusal):
        file, line = match["file"], int(match["line"])
        return f"{patch.name} does not apply to {file}: {_hunk_at(patch, file, line)}; {advice}"
    errors = [line.removeprefix("error: ") for line in refusal.splitlines() if line.startswith("error: ")]
    return f"{patch.name} does not apply: {'; '.join(errors[:3]) or refusal.splitlines()[-1]}; {advice}"


def _hunk_at(patch: Path, file: str, line: int) -> str:
    """The number and header of the hunk that begins at a line of a file."""
    number, current = 0, ""
    for text in patch.read_text("utf-8", "replace").splitlines():
        if text.startswith(("--- ", "+++ ")):
            current = text[4:].partition("\t")[0] if text[4:].strip() != "/dev/null" else current
            number = 0 if text.startswith("--- ") else number
        elif match := re.match(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*", text):
            number += 1
            if int(match[1]) == line and current.partition("/")[2] == file:
                return f"hunk {number}, {match[0]}"
    return f"the hunk at line {line}"
