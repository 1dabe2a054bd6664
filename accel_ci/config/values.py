"""The types of single values in `accel_ci.yaml`: names, sizes, paths, images. Each error describes what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, Field

from accel_ci.config.cron import check_cron


def _matching(pattern: str, message: str) -> AfterValidator:
    """A validator for text that matches the whole pattern; `message` describes what is expected."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _requirement(value: str) -> str:
    try:
        Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"not a PEP 508 requirement: {str(error).splitlines()[0]}") from None
    return value


def path_below(message: str) -> Callable[[str], str]:
    """A validator for paths below a folder; `message` describes what is expected."""

    def check(value: str) -> str:
        path = Path(value)
        if path.is_absolute() or ".." in path.parts or value.startswith("-"):
            raise ValueError(message)
        return value

    return check


_relative_path = path_below("must be a path below the root of the backend's sources")


def _pods_address(value: str) -> str:
    try:
        made = value.format(namespace="", pod="")
    except (LookupError, ValueError):
        made = value
    if "{pod}" not in value or made == value:
        raise ValueError("must have {pod} where the name of a pod belongs, and may have {namespace}, but no other braces")
    return value


def _workspace(value: str) -> str:
    _relative_path(value)
    if Path(value).parts[:1] not in (("backend",), ("upstream",)):
        raise ValueError("must be 'backend' or 'upstream', or a folder below one of them, such as 'backend/native'")
    return value


def _flag(value: str) -> str:
    name = value.partition("=")[0]
    if not re.fullmatch(r"--[a-z][\w-]*", name):
        raise ValueError("must be a flag of `bazel test`, as in '--jobs=50'")
    if name.endswith("_header"):
        raise ValueError("headers hold credentials: use rbe.headers, which takes the name of an environment variable")
    if name.removeprefix("--no") in _OWN_FLAGS or name.removeprefix("--") in _OWN_FLAGS:
        raise ValueError(f"{name} is set by accel-ci itself")
    return value


def _torch_index(value: str) -> str:
    if unknown := set(re.findall(r"\{[^{}]*\}", value)) - {COMMIT_PLACE}:
        raise ValueError(f"{min(unknown)} means nothing here; {COMMIT_PLACE} is the commit of the revision's upstream")
    if not value or value.startswith("-") or ("://" in value and not re.fullmatch(r"https?://\S+", value)):
        raise ValueError("must be an address that begins with http:// or https://, or a folder of wheels")
    return value


_OWN_FLAGS = ("bazelrc", "build_event_json_file", "build_event_json_file_path_conversion", "output_base", "symlink_prefix")


COMMIT_PLACE = "{sha}"
"""Stands for the commit of the revision's upstream in the address of wheels of PyTorch."""

Name = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}",
        "use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 80 characters",
    ),
]
Flag = Annotated[str, AfterValidator(_flag)]
Target = Annotated[str, _matching(r"-?(@[\w.~+-]*)?//[^\s]*", "must be a target pattern of Bazel, such as '//...'")]
RemoteEndpoint = Annotated[
    str,
    _matching(
        r"(grpcs?|https?|unix)://?[^\s@]+", "must be an address such as 'grpcs://remote.example', without user or password"
    ),
]
HeaderName = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9-]*", "must be the name of a header: letters, digits and '-'")]
Cron = Annotated[str, AfterValidator(check_cron)]
RequirementText = Annotated[str, AfterValidator(_requirement)]
RelativePath = Annotated[str, AfterValidator(_relative_path)]
Owner = Annotated[str, _matching(r"team:[\w.-]+|[^@\s]+@[^@\s]+", "must be 'team:<name>' or an e-mail address")]
EnvironmentName = Annotated[
    str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "must be the name of an environment variable: letters, digits and '_'")
]
Seconds = Annotated[float, Field(gt=0)]
Size = Annotated[str, _matching(r"(?i:[1-9]\d*[bkmg]?)", "must be a number of bytes, or one with k, m or g, such as '8g'")]
Quantity = Annotated[
    str, _matching(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?", "must be a Kubernetes quantity, such as '4', '500m' or '16Gi'")
]
BucketName = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "must be the name of a bucket: 3 to 63 lower-case letters, digits, '.' and '-'"
    ),
]
Endpoint = Annotated[str, _matching(r"https?://\S+", "must be an address that begins with http:// or https://")]
PodsAddress = Annotated[Endpoint, AfterValidator(_pods_address)]
Workspace = Annotated[str, AfterValidator(_workspace)]
"""`backend` or `upstream`: the root of those sources, or a folder below it."""
ContainerUser = Annotated[
    str, _matching(r"\d+(:\d+)?", "must be numbers, such as '1000:1000': the machine may not know the image's user names")
]
CommitSha = Annotated[str, _matching(r"[0-9a-f]{40}", "must be all 40 digits of a commit")]
DeviceType = Annotated[str, _matching(r"[a-z][a-z0-9_]*", "must be a type of devices for PyTorch, such as 'emu'")]
Device = Annotated[
    str,
    _matching(
        r"/dev/[^:\s]+(:/[^:\s]+(:[rwm]+)?)?",
        "must be a device of the machine, such as '/dev/accel{card}' or '/dev/a:/dev/b:rw'",
    ),
]
PinnedImage = Annotated[
    str,
    _matching(
        r"[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}",
        "must be pinned by digest, as in 'registry.example/build@sha256:<64 hexadecimal digits>'",
    ),
]
LibraryPattern = Annotated[
    str, _matching(r"[^/\s-][^/\s]*", "must be the file name of a library, without a folder, such as 'libaccel*.so*'")
]
"""The file name of a shared library; `*` and `?` are wildcards."""
BazelConfig = Annotated[str, _matching(r"[A-Za-z_][\w.-]*", "must be the name of a --config of Bazel")]
BazelStrategy = Annotated[str, _matching(r"[a-z][\w,-]*", "must be a strategy of Bazel, such as 'local'")]
ExtendedResource = Annotated[
    str, _matching(r"[a-z0-9.-]+/[A-Za-z0-9._-]+", "must be an extended resource, such as 'example.com/accel'")
]
FindingCode = Annotated[str, _matching(r"W\d{3}", "must be the code of a finding, such as 'W001'")]
GitRef = Annotated[str, _matching(r"[^-\s][^\s]*", "must be a ref of git without spaces, such as 'refs/heads/main'")]
ImageRepository = Annotated[
    str, _matching(r"[a-z0-9][\w.:/-]*", "must be a repository of a registry, such as 'registry.example/backend'")
]
Namespace = Annotated[
    str, _matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "must be the name of a namespace, such as 'accel-ci'")
]
Location = Annotated[
    str,
    _matching(
        r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?",
        "must be the name of a code location: at most 40 lower-case letters, digits and '-', such as 'torch-npu'",
    ),
]
AbsolutePath = Annotated[str, _matching(r"/[^\0\n]+", "must be a path that begins with '/'")]
Network = Annotated[str, _matching(r"[A-Za-z0-9][\w.-]*", "must be the name of a network, such as 'bridge'")]
PlatformTag = Annotated[
    str, _matching(r"(manylinux|musllinux)_\d+_\d+_\w+", "must be a platform tag, such as 'manylinux_2_28_x86_64'")
]
Program = Annotated[str, _matching(r"[^-\s]\S*", "must be a program, without arguments")]
PythonVersion = Annotated[str, _matching(r"3(\.\d+){1,2}", "must be a version of Python, such as '3.11'")]
TagFilter = Annotated[
    str, _matching(r"[-+]?[A-Za-z_][\w.:-]*", "must be a tag, or one with '-' before it to leave its tests out")
]
TestTag = Annotated[str, _matching(r"[A-Za-z_][\w-]*", "must be one tag, such as 'multi-card'")]
TorchBackend = Annotated[str, _matching(r"[\w.]+", "must be a backend of PyTorch that uv knows, such as 'cpu'")]
TorchIndex = Annotated[str, AfterValidator(_torch_index)]
WheelTag = Annotated[
    str, _matching(r"[^-\s]+-[^-\s]+-[^-\s]+", "must be a tag of wheels with three parts, such as 'cp311-cp311-*'")
]
Package = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9.+-]*", "must be the name of a package of the distribution, such as 'build-essential'"),
]
"""A package of the image's Linux distribution."""
EntryPoint = Annotated[str, _matching(r"[\w.-]+:[\w.-]+", "must be an entry point, such as 'torch.backends:my_backend'")]
ImportName = Annotated[str, _matching(r"[A-Za-z_][\w.]*", "must be the name that Python imports, such as 'my_backend'")]


def size_in_bytes(size: Size) -> int:
    """Convert a size to bytes: `8g` is 8 GiB, as in Docker."""
    factor = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(size[-1].lower())
    return int(size) if factor is None else int(size[:-1]) * factor
