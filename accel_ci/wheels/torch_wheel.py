"""Find the one wheel of PyTorch that a build takes where the configuration does not pin it, and name it by its digest.

PyTorch main is another one every night, while the configuration stays the same; the address of a wheel may stay the same,
too. So a build finds its wheel once, before everything else: what is made with it is kept under its digest, and its image
has the PyTorch that its wheel was built with.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from accel_ci.config.settings import Variant
from accel_ci.config.values import COMMIT_PLACE
from accel_ci.errors import BuildError
from accel_ci.redaction import without_credentials
from accel_ci.wheels.uv_environment import PackageSource, run_uv

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_NO_INDEX = "not found in the package registry"


def with_exact_torch(
    variant: Variant, packages: PackageSource, root: Path, upstream_sha: str | None, *, timeout_s: float
) -> Variant:
    """Return the variant with the wheel of PyTorch that it gets now, by its digest; as it is where it pins its own.

    Relative folders are below `root`. `upstream_sha` is the commit of the revision's upstream. Raises `BuildError` if there
    is no wheel that fits, as before a build of that commit is published.
    """
    if variant.torch_source == "pinned" and variant.torch_index is None:
        return variant
    wanted = Requirement(variant.torch)
    place = _place(variant, packages, upstream_sha)
    said = []
    for source in _sources(packages, place, root):
        found, output = _find(variant, wanted.name, source, timeout_s)
        if found is not None:
            return variant.model_copy(update={"torch": _requirement(wanted, found, by_address=place is not None)})
        said.append(output)
    told = next((each for each in said if _NO_INDEX not in each), said[-1])
    raise BuildError(_no_wheel(variant, place, upstream_sha, told))


def _place(variant: Variant, packages: PackageSource, upstream_sha: str | None) -> str | None:
    """The variant's place of wheels for a revision, without a password; None if PyTorch comes with all other packages."""
    place = packages.torch_index
    if place is None or COMMIT_PLACE not in place:
        return place
    if upstream_sha is None:
        raise BuildError(f"{variant.name}: torch_index needs the commit of upstream, which is not known for this revision")
    return place.replace(COMMIT_PLACE, upstream_sha)


def _sources(packages: PackageSource, place: str | None, root: Path) -> list[PackageSource]:
    """The sources to ask in turn: an address may be that of an index, or of a page of wheels."""
    if place is None:
        return [packages]
    if "://" not in place:
        return [packages.only_from("--no-index", "--find-links", str((root / place).absolute()))]
    return [packages.only_from("--default-index", place), packages.only_from("--no-index", "--find-links", place)]


def _find(variant: Variant, name: str, source: PackageSource, timeout_s: float) -> tuple[dict[str, str] | None, str]:
    """Return the version, the address and the digest of the wheel that uv would install, or None, and the end of its output.

    uv is asked for a lock file (`pylock.toml`), which has all of these. Since 0.13, uv lists one wheel there, and reads it
    if its index does not tell a digest.
    """
    arguments = ["pip", "compile", "-", "--python", variant.python, "--no-deps", "--no-build", "--format", "pylock.toml"]
    arguments += ["--quiet", "--no-header", "--refresh-package", name, *source.options]
    arguments += ["--prerelease", "allow"] if variant.torch_source == "main" else []
    done = run_uv(arguments, source, timeout_s=timeout_s, stdin=without_credentials(variant.torch))
    lock = done.output[max(0, done.output.find("lock-version")) :]  # warnings come first
    if done.status != 0:
        return None, done.tail
    try:
        [package] = tomllib.loads(lock)["packages"]
        [wheel] = [package["archive"]] if "archive" in package else package["wheels"]
        address = wheel["url"] if "url" in wheel else Path(wheel["path"]).absolute().as_uri()
        return {"version": package["version"], "address": address, "digest": wheel["hashes"]["sha256"]}, ""
    except (ValueError, LookupError, TypeError):
        return None, f"uv's answer is not understood:\n{done.tail}"


def _requirement(wanted: Requirement, found: Mapping[str, str], *, by_address: bool) -> str:
    """Write the wheel as a requirement: by its address, or by version where it comes with all other packages."""
    name = wanted.name + (f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else "")
    if by_address or wanted.url is not None:
        return f"{name} @ {without_credentials(found['address']).partition('#')[0]}#sha256={found['digest']}"
    return f"{name}=={found['version']} --hash=sha256:{found['digest']}"


def _no_wheel(variant: Variant, place: str | None, sha: str | None, output: str) -> str:
    wanted = f"{without_credentials(variant.torch)} for Python {variant.python}"
    where = f" at {place}" if place is not None else ""
    advice = "correct torch_index or torch of the variant"
    if place is None:
        advice = "set torch_index of the variant, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to a place of PyTorch main's wheels"
    elif COMMIT_PLACE in str(variant.torch_index):
        where = f" of commit {sha}{where}"
        advice = f"if it is still being built, `accel-ci resume BUILD` goes on once it is there; otherwise {advice}"
    return f"{variant.name}: there is no wheel of {wanted}{where}:\n{output}\nAdvice: {advice}"
