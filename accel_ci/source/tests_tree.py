"""The folder that tests run in: the checkout without the packages of the wheel, so that tests import the wheel's."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from filelock import FileLock

from accel_ci.source.checkout import changes_of_checkout, checkout_root, is_checkout, seal_checkout


def tests_tree(sources: Path, packages: Collection[str], kept: Sequence[str]) -> Path:
    """Return the sources without some top-level packages and modules, copied once; the sources if they have none of these.

    A copy that tests have changed is made anew.
    Of a package that holds tests itself, the paths that are `kept`, below the sources, stay.
    """
    hidden = sorted(name for each in packages for name in (each, f"{each}.py") if (sources / name).exists())
    hidden = [name for name in hidden if name not in (os.path.normpath(path) for path in kept)]
    if not hidden:
        return sources
    root = checkout_root(sources)
    identity = hashlib.sha256("\n".join([*hidden, "", *sorted(kept)]).encode()).hexdigest()[:8]
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
