"""A series of patches on a tree of sources: applied in order, skipped where they are there already, explained otherwise.

The order is that of the file `series` in the folder of the patches (a name a line, `#` begins a comment), else that of the
names of its `*.patch` and `*.diff` files.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from accel_ci.errors import SourceError

_LIMIT_S = 120
_FAILED = re.compile(r"^error: patch failed: (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class AppliedSeries:
    """The names of a series in order, and those of them that the sources had already."""

    names: tuple[str, ...]
    already: tuple[str, ...]


def read_series(folder: Path) -> tuple[Path, ...]:
    """The patches of a folder in their order. Raises `SourceError` when there is none, or one that is named is not there."""
    series = folder / "series"
    if series.is_file():
        lines = (line.partition("#")[0].strip() for line in series.read_text("utf-8", "replace").splitlines())
        patches = tuple(folder / line for line in lines if line)
    else:
        patches = tuple(sorted(path for path in folder.glob("*") if path.suffix in (".patch", ".diff")))
    if not patches:
        raise SourceError(f"{folder}: there is no patch; add *.patch files, or take rbe.patches out of the configuration")
    for patch in patches:
        if not patch.resolve().is_relative_to(folder.resolve()) or not patch.is_file():
            raise SourceError(f"{series}: names {patch.name}, which is not in its folder; add the file or take the line out")
    return patches


def apply_series(patches: tuple[Path, ...], tree: Path) -> AppliedSeries:
    """Apply patches to the files below `tree`, in order; one that was applied before is passed over.

    Raises `SourceError` naming the patch, the file and the hunk when one does not apply. The tree is then part patched.
    """
    already = []
    for patch in patches:
        said = _apply(patch, tree, "--check")
        if said is None:
            if (said := _apply(patch, tree)) is not None:
                raise SourceError(_explain(patch, said))
        elif _apply(patch, tree, "--check", "--reverse") is None:
            already.append(patch.name)
        else:
            raise SourceError(_explain(patch, said))
    return AppliedSeries(tuple(patch.name for patch in patches), tuple(already))


def _apply(patch: Path, tree: Path, *options: str) -> str | None:
    """What git said against the patch; None when it applies."""
    # Outside of a repository, git applies to plain files; the ceiling keeps it from finding one further up.
    environment = {
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
        "LC_ALL": "C",
        "PATH": os.environ.get("PATH", os.defpath),
    }
    command = ["git", "apply", "--verbose", *options, "--", str(patch.resolve())]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SourceError("git is not installed; install it and try again") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"{patch.name}: git apply gave no answer within {_LIMIT_S} s") from None
    return None if done.returncode == 0 else done.stderr.strip() or "no message"


def _explain(patch: Path, said: str) -> str:
    """A text that names the patch, the file and the hunk."""
    advice = f"rebase {patch.name} on the sources of this revision, or take it out of the series"
    if match := _FAILED.search(said):
        file, line = match["file"], int(match["line"])
        return f"{patch.name} does not apply to {file}: {_hunk_at(patch, file, line)}; {advice}"
    errors = [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]
    return f"{patch.name} does not apply: {'; '.join(errors[:3]) or said.splitlines()[-1]}; {advice}"


def _hunk_at(patch: Path, file: str, line: int) -> str:
    """The hunk of a patch that begins at a line of a file, as its header has it."""
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
