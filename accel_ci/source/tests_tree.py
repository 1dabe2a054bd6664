"""The folder that tests run in: the checkout without the packages of the wheel, and with PyTorch's own tests.

Tests import the wheel's packages. What suites of PyTorch's tests need lies in folders beside the backend's own tests, so
that all ids are relative to one root.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from accel_ci.errors import SourceError
from accel_ci.source.checkout import changes_of_checkout, checkout_root, is_checkout, seal_checkout


def tests_tree(
    sources: Path,
    packages: Collection[str],
    kept: Sequence[str],
    folders: Mapping[str, Path] | None = None,  # noqa: PT028 - no test
    files: Mapping[str, bytes] | None = None,  # noqa: PT028
) -> Path:
    """Return the sources without some top-level packages and modules, copied once; the sources if nothing is to change.

    A copy that tests have changed is made anew.
    Of a package that holds tests itself, the paths that are `kept`, below the sources, stay. Copies of `folders`, whose
    names tell their content, and `files` are added under their paths. Raises `SourceError` if the sources have these.
    """
    folders, files = folders or {}, files or {}
    for name in sorted({Path(path).parts[0] for path in (*folders, *files)}):
        if (sources / name).exists():
            raise SourceError(f"the backend's sources have {name!r}, which is where PyTorch's tests go; rename it")
    hidden = sorted(name for each in packages for name in (each, f"{each}.py") if (sources / name).exists())
    hidden = [name for name in hidden if name not in (os.path.normpath(path) for path in kept)]
    if not hidden and not folders and not files:
        return sources
    root = checkout_root(sources)
    added = [f"{name}={folder}" for name, folder in sorted(folders.items())]
    added += [f"{name}={hashlib.sha256(content).hexdigest()}" for name, content in sorted(files.items())]
    names = [*hidden, "", *sorted(kept), *(["", *added] if added else [])]
    identity = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    tree = root.with_name(f"{root.name}-tests-{identity}")
    below = sources.relative_to(root)
    with FileLock(root.with_name(f".{tree.name}.lock")):
        if tree.is_dir() and is_checkout(tree) and changes_of_checkout(tree):
            shutil.rmtree(tree)  # tests have written to it
        if not tree.is_dir():
            with tempfile.TemporaryDirectory(prefix=".tests-", dir=root.parent) as scratch:
                copy = shutil.copytree(root, Path(scratch) / "files", symlinks=True)
                for name in hidden:
                    _hide(copy / below / name)
                for path in kept:
                    if Path(path).parts[0] in hidden:
                        _restore(sources / path, copy / below / path)
                for name, folder in folders.items():
                    shutil.copytree(folder, copy / below / name, symlinks=True, ignore=shutil.ignore_patterns(".git"))
                for name, content in files.items():
                    (copy / below / name).parent.mkdir(parents=True, exist_ok=True)
                    (copy / below / name).write_bytes(content)
                if is_checkout(copy):
                    seal_checkout(copy)
                copy.rename(tree)
        os.utime(tree)  # `prune` leaves what was used in the last day
    return tree / below


tests_tree.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it for its name


def _hide(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def _restore(original: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if original.is_dir():
        shutil.copytree(original, place, symlinks=True, dirs_exist_ok=True)
    elif original.is_file():
        shutil.copy2(original, place)
