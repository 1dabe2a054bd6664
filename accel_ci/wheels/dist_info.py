"""A wheel's dist-info folder: METADATA, WHEEL and entry points, by their specifications.

RECORD is in `record.py`.
"""

from __future__ import annotations

import configparser
import re
from collections import defaultdict
from collections.abc import Iterable

from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from accel_ci.model import CheckResult
from accel_ci.wheels.archive import Contents
from accel_ci.wheels.findings import Findings, shown
from accel_ci.wheels.wheel_name import TAGS_LIMIT, WheelName, admitted, number_of_tags

_REQUIRED = ("METADATA", "WHEEL", "RECORD")
_SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
_LENIENT = ("introduced in metadata version", "unrecognized field")
_HEADERS_LIMIT = 10_000
_HEADER_CHARACTERS = 16_384
_REQUIRES_PYTHON_CHARACTERS = 1000
_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\s*:\s*[^\W\d]\w*(\.[^\W\d]\w*)*)?(\s*\[[^\]]*\])?")
_SCRIPTS = ("console_scripts", "gui_scripts")


def check_dist_info(contents: Contents, name: WheelName | None) -> tuple[CheckResult, str | None]:
    """Check the folder and the data folder beside it; the folder is None if there is not exactly one."""
    found = Findings("dist_info")
    folders = contents.folders(".dist-info")
    if len(folders) != 1:
        listed = f": {', '.join(map(shown, folders))}" if folders else ""
        found.fault(f"there are {len(folders) or 'no'} dist-info folders, and must be one{listed}")
        return found.result(""), None
    [folder] = folders
    if name is not None:
        _check_folder(folder, name, found)
    for file in _REQUIRED:
        if f"{folder}/{file}" not in contents.members:
            found.fault(f"{folder}/{file}: is missing")
    _check_entry_points(contents, f"{folder}/entry_points.txt", found)
    _check_data(contents, folder.removesuffix(".dist-info"), found)
    return found.result(folder), folder


def check_wheel_file(contents: Contents, dist_info: str, name: WheelName | None) -> CheckResult:
    """Check the file WHEEL by itself, and against the file name."""
    found = Findings("wheel_file")
    path = f"{dist_info}/WHEEL"
    fields = wheel_fields(contents, dist_info, found)
    if found.faults:
        return found.result("")
    for key in ("wheel-version", "root-is-purelib"):
        if len(fields[key]) != 1:
            found.fault(f"{path}: has {len(fields[key]) or 'no'} field{'s' * bool(fields[key])} {key.title()}")
    for version in fields["wheel-version"]:
        if not re.fullmatch(r"\d+\.\d+", version):
            found.fault(f"{path}: {shown(version)} is no Wheel-Version")
        elif not version.startswith("1."):
            found.fault(f"{path}: has the Wheel-Version {version}; installers read 1.0")
        elif version != "1.0":
            found.warn(f"{path}: has the Wheel-Version {version}; installers read 1.0")
    for value in fields["root-is-purelib"]:
        if value.lower() not in ("true", "false"):
            found.fault(f"{path}: Root-Is-Purelib is {shown(value)}, neither true nor false")
    _check_tags(path, fields["tag"], name, found)
    if name is not None and fields["build"] != ([name.build] if name.build else []):
        written = ", ".join(map(shown, fields["build"])) or "none"
        found.fault(f"{path}: its Build is {written}, but {name.build or 'none'} in the file name")
    return found.result(f"Wheel-Version {fields['wheel-version'][0]}" if fields["wheel-version"] else "")


def check_metadata(contents: Contents, dist_info: str, name: WheelName | None) -> CheckResult:
    """Check METADATA by the core metadata specification, and against the file name."""
    found = Findings("metadata")
    path = f"{dist_info}/METADATA"
    if path not in contents.members:
        found.fault(f"{path}: is missing")
        return found.result("")
    data = contents.read(path)
    if fault := _fault_of_headers(data):
        found.fault(f"{path}: {fault}")
        return found.result("")
    raw, _ = parse_email(data)
    newer = re.fullmatch(r"2\.\d+", raw.get("metadata_version", ""))
    for problem in _problems(data):
        text = f"{path}: {shown(problem)}"
        lenient = any(words in problem for words in _LENIENT) or (newer and "is not a valid metadata version" in problem)
        (found.warn if lenient else found.fault)(text)
    if name is not None:
        _check_identity(path, raw, name, found)
        _check_requires_python(path, raw.get("requires_python"), name, found)
    _check_requirements(path, raw.get("requires_dist", []), found)
    if _is_since(raw.get("metadata_version", ""), "2.4"):
        for file in raw.get("license_files", []):
            if f"{dist_info}/licenses/{file}" not in contents.members:
                found.fault(f"{dist_info}/licenses/{shown(file)}: is missing, but a License-File of {path}")
    return found.result(f"Metadata-Version {raw.get('metadata_version')}")


def wheel_fields(contents: Contents, dist_info: str, found: Findings) -> dict[str, list[str]]:
    """Return the fields of WHEEL by their names in lower case; faults of its syntax are added to `found`."""
    fields: dict[str, list[str]] = defaultdict(list)
    path = f"{dist_info}/WHEEL"
    if path not in contents.members:
        found.fault(f"{path}: is missing")
        return fields
    try:
        text = contents.read(path).decode("utf-8")
    except UnicodeDecodeError:
        found.fault(f"{path}: is not UTF-8")
        return fields
    for number, line in enumerate(text.splitlines(), 1):
        key, colon, value = line.partition(":")
        if colon and key.strip() and not key[0].isspace():
            fields[key.strip().lower()].append(value.strip())
        elif line.strip():
            found.fault(f"{path}: line {number} is not a field and its value: {shown(line[:80])}")
    return fields


def requires_python(contents: Contents, dist_info: str) -> SpecifierSet:
    """Return the Pythons that METADATA requires; all of them if it names none, or not by the specification."""
    try:
        data = contents.read(f"{dist_info}/METADATA")
        raw = {} if _fault_of_headers(data) else parse_email(data)[0]
        return SpecifierSet(raw.get("requires_python", ""))
    except (KeyError, ValueError):
        return SpecifierSet()


def admits(requirement: SpecifierSet, version: tuple[int, int]) -> bool:
    """Return True if any release of a Python, such as 3.11, meets the requirement."""
    return any(requirement.contains(f"{version[0]}.{version[1]}.{patch}") for patch in range(40))


def _fault_of_headers(metadata: bytes) -> str | None:
    """Return the limit that the headers are over: parsing takes much memory for each, and much time for long values."""
    lines = metadata.replace(b"\r\n", b"\n").partition(b"\n\n")[0].split(b"\n")
    if len(lines) > _HEADERS_LIMIT:
        return f"has {len(lines):,} lines of headers, more than {_HEADERS_LIMIT:,}"
    number, longest = max(enumerate(lines, 1), key=lambda numbered: len(numbered[1]))
    limit = _HEADER_CHARACTERS
    if len(longest) > limit:
        return f"has {len(longest):,} characters in line {number}, more than {limit:,}"
    asked = [line for line in lines if line.lower().startswith(b"requires-python:")]
    if any(len(line) > _REQUIRES_PYTHON_CHARACTERS for line in asked):
        return f"has more than {_REQUIRES_PYTHON_CHARACTERS:,} characters in Requires-Python"
    return None


def _check_folder(folder: str, name: WheelName, found: Findings) -> None:
    own_name, _, own_version = folder.removesuffix(".dist-info").partition("-")
    try:
        version = Version(own_version)
    except ValueError:
        found.fault(f"{shown(folder)}: is not named NAME-VERSION.dist-info")
        return
    if canonicalize_name(own_name) != name.name or version != name.version:
        found.fault(f"{shown(folder)}: the file name has {name.name} {name.version}")


def _check_data(contents: Contents, prefix: str, found: Findings) -> None:
    """Check that each file of the data folder is installed somewhere, and no two in one place."""
    for folder in contents.folders(".data"):
        if folder != f"{prefix}.data":
            found.fault(f"{shown(folder)}: is not named {prefix}.data, as the dist-info folder is")
    for path in contents.members:
        top, _, below = path.partition("/")
        if top != f"{prefix}.data":
            continue
        scheme, slash, target = below.partition("/")
        if scheme not in _SCHEMES or not slash:
            found.fault(f"{shown(path)}: is not in one of the folders {', '.join(_SCHEMES)}")
        elif scheme in ("purelib", "platlib"):
            others = [target, *(f"{top}/{other}/{target}" for other in ("purelib", "platlib") if other < scheme)]
            for other in others:
                if other in contents.members:
                    found.fault(f"{shown(path)}: is installed in the same place as {shown(other)}")


def _check_entry_points(contents: Contents, path: str, found: Findings) -> None:
    if path not in contents.members:
        return
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, default_section="")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(contents.read(path).decode("utf-8"))
    except UnicodeDecodeError:
        found.fault(f"{path}: is not UTF-8")
        return
    except configparser.Error as error:
        found.fault(f"{path}: {shown(' '.join(str(error).split()))}")
        return
    for group in parser.sections():
        for name, value in parser.items(group):
            entry = f"{path}: {shown(f'{name} = {value}')} in [{shown(group)}]"
            if not _OBJECT.fullmatch(value.strip()):
                found.fault(f"{entry} is no object reference, such as package.module:function")
            elif group in _SCRIPTS and ":" not in value:
                found.fault(f"{entry} names no function, so that no script can be made")
            elif group in _SCRIPTS and ("/" in name or "\\" in name):
                found.fault(f"{entry} cannot be the name of a script")


def _check_tags(path: str, lines: Iterable[str], name: WheelName | None, found: Findings) -> None:
    tags: set[Tag] = set()
    for line in lines:
        if len(tags) + number_of_tags(line) > TAGS_LIMIT:
            found.fault(f"{path}: has more than {TAGS_LIMIT:,} tags")
            return
        try:
            expanded = parse_tag(line)
        except ValueError:
            expanded = frozenset()
        if not expanded or line.count("-") != 2:
            found.fault(f"{path}: {shown(line) or 'an empty text'} is no tag")
        elif len(expanded) > 1:
            found.fault(f"{path}: the tag {shown(line)} is not expanded: each of its {len(expanded)} tags needs a line")
        tags |= expanded
    if not tags and not found.faults:
        found.fault(f"{path}: has no Tag")
    elif name is not None:
        for missing in sorted(map(str, name.tags - tags)):
            found.fault(f"{path}: has no Tag {missing}, which the file name has")
        for other in sorted(map(str, tags - name.tags)):
            found.fault(f"{path}: has the Tag {shown(other)}, which the file name has not")


def _problems(data: bytes) -> list[str]:
    """Return what `packaging` finds in core metadata."""
    try:
        Metadata.from_email(data)
    except InvalidMetadata as error:
        return [str(error)]
    except Exception as error:  # a group of them: `packaging` has its own class for Python 3.10
        return sorted(str(each) for each in getattr(error, "exceptions", (error,)))
    return []


def _check_identity(path: str, raw: RawMetadata, name: WheelName, found: Findings) -> None:
    own_name, own_version = raw.get("name", ""), raw.get("version", "")
    if own_name and canonicalize_name(own_name) != name.name:
        found.fault(f"{path}: its Name is {shown(own_name)}, but {name.name} in the file name")
    try:
        if own_version and Version(own_version) != name.version:
            found.fault(f"{path}: its Version is {own_version}, but {name.version} in the file name")
    except ValueError:
        return  # `packaging` has reported it


def _check_requires_python(path: str, requirement: str | None, name: WheelName, found: Findings) -> None:
    """Check that one of the Pythons that the tags admit meets Requires-Python: else nobody can install the wheel."""
    try:
        wanted = SpecifierSet(requirement or "")
    except ValueError:
        return  # `packaging` has reported it
    versions = {python.version for tag in name.tags for python in admitted(tag)}
    if versions and not any(admits(wanted, version) for version in versions):
        tags = ", ".join(sorted(map(str, name.tags)))
        found.fault(f"{path}: no Python of the tags {tags} meets its Requires-Python {wanted}")


def _check_requirements(path: str, requirements: Iterable[str], found: Findings) -> None:
    for text in requirements:
        try:
            url = Requirement(text).url
        except ValueError:
            continue  # `packaging` has reported it
        if url and url.startswith("file:"):
            found.fault(f"{path}: requires a file of the machine that built it: {shown(text)}")
        elif url:
            found.warn(f"{path}: requires a URL, which a package index refuses: {shown(text)}")


def _is_since(version: str, first: str) -> bool:
    try:
        return Version(version) >= Version(first)
    except ValueError:
        return False
