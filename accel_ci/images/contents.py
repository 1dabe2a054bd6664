"""Read the contents of an image: versions, and from the stream of `docker save` packages, libraries and duplicates.

Everything is read once and nothing is unpacked, so that an image costs as long as reading it takes. Files that a later layer
replaces or removes still take space, which is counted as wasted.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from accel_ci.errors import BuildError
from accel_ci.model import ImageLayer
from accel_ci.process.run import Finished
from accel_ci.storage.artifacts import sha256_of

VERSIONS_CODE = """
import json, platform, torch
print(json.dumps([platform.python_version(), torch.__version__, getattr(torch.version, "git_version", None)]))
"""
"""The code for the interpreter of an image (`-I -c`)."""

_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
_SMALLEST_LIBRARY = 64 << 10
_READ_LIMIT = 1 << 24  # bytes of a file that is kept in memory; a longer one is cut
_DPKG = "var/lib/dpkg/status"
_MANGLED = re.compile(r"-[0-9a-f]{8}(?=\.so)")  # auditwheel adds this to the names of the libraries that it copies


@dataclass(frozen=True)
class SoftwarePackage:
    """An installed package; `kind` is that of a package URL."""

    kind: str
    name: str
    version: str
    licence: str | None = None


@dataclass(frozen=True)
class Library:
    """A shared library of at least 64 KiB: its path, its layer (from 0), and its digest."""

    path: str
    layer: int
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's original name."""
        return _MANGLED.sub("", PurePosixPath(self.path).name)


@dataclass(frozen=True)
class ImageContents:
    """Packages, libraries, and the bytes of files that later layers replace or remove.

    `layers` are those of an image whose configuration says what made them. `records` are the files RECORD of Python's
    packages, by path.
    """

    packages: tuple[SoftwarePackage, ...]
    libraries: tuple[Library, ...]
    wasted_bytes: int
    layers: tuple[ImageLayer, ...] = ()
    records: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class Layer:
    """A layer as it was read: the sizes of its files, the paths that it removes, and what is kept of its contents."""

    files: dict[str, int] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    libraries: dict[str, tuple[int, str]] = field(default_factory=dict)
    metadata: dict[str, bytes] = field(default_factory=dict)
    dpkg: bytes | None = None


def read_image(stream: IO[bytes]) -> ImageContents:
    """Read the image that `docker save` writes to the stream. Raises `ValueError` for any other stream."""
    layers: dict[str, Layer] = {}
    order: list[str] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for entry in archive:
                opened = archive.extractfile(entry) if entry.isfile() else None
                if opened is None:
                    continue
                if entry.name == "manifest.json":
                    order = json.loads(opened.read(_READ_LIMIT))[0]["Layers"]
                elif not entry.name.endswith(".json") and entry.name not in ("repositories", "oci-layout"):
                    layer = read_layer(opened)
                    if layer is not None:
                        layers[entry.name] = layer
    except (tarfile.TarError, KeyError, IndexError) as error:
        raise ValueError(f"not what `docker save` writes: {error}") from error
    if not order:
        raise ValueError("not what `docker save` writes: it names no layers")
    return join_layers([layers[name] for name in order if name in layers])


def read_versions(done: Finished, advice: str) -> tuple[str, str, str | None]:
    """Read the versions of Python and PyTorch, and the commit of PyTorch, from the output of `VERSIONS_CODE`.

    A PyTorch that was built without git has a word in place of its commit. Raises `BuildError` with `advice` if PyTorch did
    not import.
    """
    try:
        python_version, torch_version, torch_sha = json.loads(done.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise BuildError(f"PyTorch does not import in the runtime image:\n{done.tail}\nCheck {advice}") from None
    known = isinstance(torch_sha, str) and re.fullmatch("[0-9a-f]+", torch_sha)
    return python_version, torch_version, torch_sha if known else None


def installed_packages(site_packages: Path) -> tuple[SoftwarePackage, ...]:
    """The Python packages in a `site-packages` folder."""
    found = {str(file): file.read_bytes() for file in sorted(site_packages.glob("*.dist-info/METADATA"))}
    return tuple(sorted(set(_python_packages(found)), key=lambda each: each.name))


def duplicates(libraries: Sequence[Library], allowed: Sequence[str]) -> list[str]:
    """A line for each library that occurs more than once: the same file, or one name with different content."""
    by_content: defaultdict[str, list[Library]] = defaultdict(list)
    by_name: defaultdict[str, dict[str, Library]] = defaultdict(dict)
    for library in libraries:
        if not any(fnmatchcase(library.name, pattern) for pattern in allowed):
            by_content[library.sha256].append(library)
            if library.name.startswith("lib"):  # not Python's extensions, which are named like their modules
                by_name[library.name].setdefault(library.sha256, library)
    same = [group for group in by_content.values() if len(group) > 1]
    same.sort(key=lambda group: -group[0].size_bytes * (len(group) - 1))
    lines = [f"{each[0].name} ({each[0].size_bytes:,} bytes) occurs {len(each)} times: {_places(each)}" for each in same]
    differing = {name: group.values() for name, group in by_name.items() if len(group) > 1}
    return lines + [f"{name} occurs in {len(group)} versions: {_places(group)}" for name, group in differing.items()]


def _places(group: Iterable[Library]) -> str:
    return ", ".join(f"/{library.path} (layer {library.layer})" for library in group)


def read_layer(stream: IO[bytes]) -> Layer | None:
    """Read a layer, compressed or not; None if it is not an archive."""
    layer = Layer()
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for entry in archive:
                path = entry.name.removeprefix("./")
                name = PurePosixPath(path).name
                if name.startswith(".wh."):
                    layer.removed.append(str(PurePosixPath(path).with_name(name.removeprefix(".wh."))))
                elif entry.isfile():
                    opened = archive.extractfile(entry)
                    _look_at(layer, path, entry.size, opened or io.BytesIO())
    except tarfile.TarError:
        return None
    return layer


def _look_at(layer: Layer, path: str, size: int, content: IO[bytes]) -> None:
    layer.files[path] = size
    if path.endswith((".dist-info/METADATA", ".dist-info/RECORD")):
        layer.metadata[path] = content.read(_READ_LIMIT)
    elif path == _DPKG:
        layer.dpkg = content.read(_READ_LIMIT)
    elif size >= _SMALLEST_LIBRARY and _LIBRARY.search(path):
        layer.libraries[path] = (size, sha256_of(content))


def join_layers(layers: Sequence[Layer], made_by: Sequence[str] = ()) -> ImageContents:
    """Put the layers of an image together, the lowest first; `made_by` says what made each, where that is known."""
    there: dict[str, int] = {}
    metadata: dict[str, bytes] = {}
    dpkg = b""
    wasted = 0
    for layer in layers:
        for path in layer.removed:
            gone = [path] if path in there else [each for each in there if each.startswith(f"{path}/")]
            wasted += sum(there.pop(each) for each in gone)
            for each in gone:
                metadata.pop(each, None)
        wasted += sum(there[path] for path in layer.files if path in there)
        there |= layer.files
        metadata |= layer.metadata
        dpkg = layer.dpkg if layer.dpkg is not None else dpkg
    described = {path: content for path, content in metadata.items() if path.endswith("/METADATA")}
    packages = [*_python_packages(described), *_debian_packages(dpkg.decode("utf-8", "replace"))]
    in_order = sorted(set(packages), key=lambda each: (each.kind, each.name))
    found = [(number, *each) for number, layer in enumerate(layers) for each in layer.libraries.items()]
    libraries = tuple(Library(path, number, size, digest) for number, path, (size, digest) in found)
    shown = tuple(ImageLayer(by, sum(layer.files.values())) for by, layer in zip(made_by, layers, strict=False))
    records = {path: content for path, content in metadata.items() if path.endswith("/RECORD")}
    return ImageContents(tuple(in_order), libraries, wasted, shown, records)


def _python_packages(metadata: Mapping[str, bytes]) -> Iterator[SoftwarePackage]:
    for content in metadata.values():
        headers = HeaderParser().parsestr(content.decode("utf-8", "replace"))
        licence = headers["License-Expression"] or (headers["License"] or "").strip().partition("\n")[0] or None
        yield SoftwarePackage("pypi", headers["Name"] or "unknown", headers["Version"] or "unknown", licence)


def _debian_packages(status: str) -> Iterator[SoftwarePackage]:
    for paragraph in status.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in paragraph.splitlines() if not line.startswith(" "))
        if "installed" in fields.get("Status", "").split():
            yield SoftwarePackage("deb", fields["Package"], fields.get("Version", "unknown"))
