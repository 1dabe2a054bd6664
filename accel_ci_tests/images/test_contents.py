"""Reading the stream of `docker save`, tested with streams made here."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping

import pytest

from accel_ci.images.contents import SoftwarePackage, duplicates, read_image
from accel_ci.images.sbom import bill_of_materials

LIBRARY = b"\x7fELF" + b"x" * 70_000
METADATA = b"Metadata-Version: 2.4\nName: Toy\nVersion: 1.0\nLicense-Expression: MIT\n\nA toy.\n"
DPKG = b"Package: libc6\nStatus: install ok installed\nVersion: 2.36\n\nPackage: gone\nStatus: deinstall ok config-files\n"


def archive(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def image(*layers: Mapping[str, bytes], mode: str = "w") -> io.BytesIO:
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    parts = {name: archive(layer, mode) for name, layer in zip(names, layers, strict=True)}
    return io.BytesIO(archive({**parts, "manifest.json": json.dumps([{"Layers": names}]).encode()}))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_packages_and_libraries_of_all_layers(mode: str) -> None:
    contents = image(
        {"var/lib/dpkg/status": DPKG, "usr/lib/libvendor.so.1": LIBRARY},
        {"opt/venv/toy-1.0.dist-info/METADATA": METADATA, "opt/venv/small.so": b"\x7fELF"},
        mode=mode,
    )
    found = read_image(contents)
    assert found.packages == (SoftwarePackage("deb", "libc6", "2.36"), SoftwarePackage("pypi", "Toy", "1.0", "MIT"))
    assert [(library.path, library.layer) for library in found.libraries] == [("usr/lib/libvendor.so.1", 0)]
    assert found.wasted_bytes == 0


def test_a_second_copy_is_reported_with_its_layer_even_if_it_hides_the_first() -> None:
    found = read_image(
        image(
            {"usr/lib/libvendor.so.1": LIBRARY, "a/other.txt": b"12345"},
            {"usr/lib/libvendor.so.1": LIBRARY, "a/.wh.other.txt": b""},  # as `chown` in a separate layer does
            {"opt/toy.libs/libvendor-0123abcd.so.1": LIBRARY},
        )
    )
    assert found.wasted_bytes == len(LIBRARY) + 5
    [line] = duplicates(found.libraries, [])
    assert line.startswith("libvendor.so.1 (70,004 bytes) occurs 3 times: /usr/lib/libvendor.so.1 (layer 0), ")
    assert "/opt/toy.libs/libvendor-0123abcd.so.1 (layer 2)" in line
    assert duplicates(found.libraries, ["libvendor.so*"]) == []


def test_two_versions_of_a_library_are_named() -> None:
    found = read_image(image({"a/libomp.so": LIBRARY, "b/libomp.so": LIBRARY + b"y", "c/m.so": LIBRARY + b"z"}))
    assert duplicates(found.libraries, []) == [
        "libomp.so occurs in 2 versions: /a/libomp.so (layer 0), /b/libomp.so (layer 0)"
    ]


def test_removed_packages_are_not_in_the_bill_of_materials() -> None:
    path = "opt/venv/toy-1.0.dist-info/METADATA"
    assert read_image(image({path: METADATA}, {"opt/.wh.venv": b""})).packages == ()


@pytest.mark.parametrize("stream", [b"", b"no tar", archive({"file": b"1"})])
def test_other_streams_are_refused(stream: bytes) -> None:
    with pytest.raises(ValueError, match="not what `docker save` writes"):
        read_image(io.BytesIO(stream))


def test_the_bill_of_materials_is_the_same_for_the_same_packages() -> None:
    packages = [SoftwarePackage("pypi", "Toy", "1.0", "MIT"), SoftwarePackage("deb", "libc6", "2.36")]
    document = bill_of_materials("toy", "0" * 64, packages)
    assert document == bill_of_materials("toy", "0" * 64, reversed(packages))
    found = json.loads(document)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert {each["purl"] for each in found["components"]} == {"pkg:pypi/toy@1.0", "pkg:deb/debian/libc6@2.36"}
    [toy] = [each for each in found["components"] if each["name"] == "Toy"]
    assert toy["licenses"] == [{"license": {"id": "MIT"}}]
