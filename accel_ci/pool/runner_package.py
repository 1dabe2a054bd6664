"""The runner as one file: a zipapp of `accel_ci.runner` that any Python with pytest can run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import accel_ci.runner
from accel_ci.storage.atomic_file import whole_file

_PACKAGE = "accel_ci_runner"
"""The package's name in the zipapp, so that an `accel_ci` in the tested environment is neither hidden nor used."""

_MAIN = f"import sys\nfrom {_PACKAGE}.__main__ import main\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_runner(destination: Path) -> Path:
    """Write the runner to `destination` and return that path. Equal sources always make equal bytes."""
    sources = Path(accel_ci.runner.__file__).parent
    destination.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(destination) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for source in sorted(sources.glob("*.py")):
            archive.writestr(_entry(f"{_PACKAGE}/{source.name}"), source.read_bytes())
        archive.writestr(_entry("__main__.py"), _MAIN)
    return destination


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    return entry
