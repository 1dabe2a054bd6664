"""The section `release`: the conditions of releases, and the places that they go to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint, EnvironmentName, ImageRepository, Name, Seconds

Released = Literal["nightly", "intraday", "main", "manual"]
"""The triggers whose builds may go out: the others test strangers' changes, or only inform."""


class Gate(Section):
    """The conditions of a release, beside an exact ledger that passes and sources that are committed.

    Each of `suites` must have a passed test; by default, those of the build's job must. At least `passed` tests must pass,
    at most the share `flaky` may be flaky, and at most `muted` failures may be muted by the quarantine. With `checks`, all
    checks of the wheel and the image must hold. The backend must have the `level`, or a higher one, and each criterion in
    `quality` (`accel-ci quality` lists their names) must be met.
    """

    suites: tuple[Name, ...] = ()
    passed: Annotated[int, Field(ge=1)] = 1
    flaky: Annotated[float, Field(ge=0, le=1)] = 1.0
    muted: Annotated[int, Field(ge=0)] | None = None
    checks: bool = True
    level: Literal["L1", "L2", "L3", "L4"] | None = None
    quality: tuple[str, ...] = ()


class Channel(Section):
    """The nightly channel: a static index of the wheels of builds with one of `triggers` that pass the gate.

    Kept are the builds of the last `keep_days` days, and the newest `keep_builds`.
    """

    triggers: tuple[Released, ...] = ("nightly",)
    keep_days: Annotated[int, Field(ge=0)] = 30
    keep_builds: Annotated[int, Field(ge=1)] = 14


class Index(Section):
    """A package index: the address that takes uploads, and the one that `pip install --index-url` is given.

    The token is in the variable `token`; without one, it is had by OIDC (trusted publishing). Packages that the index does
    not have come from where they always do. Without `local_versions`, it refuses versions with a local part, as the Python
    Package Index does (PEP 440). With `attestations`, each file goes out with one that says who published it (PEP 740).
    """

    upload: Endpoint
    simple: Endpoint
    token: EnvironmentName | None = None
    local_versions: bool = True
    attestations: bool = False
    timeout_seconds: Seconds = 600


class Sigstore(Section):
    """The services that sign attestations: by default Sigstore's public ones, whose log everybody can read.

    `trust` is a file with the trust configuration of others (`ClientTrustConfig` of sigstore-python). The identity is that
    of the job of GitHub Actions or GitLab, or the OIDC token in the file that the variable `token_file` names.
    """

    trust: str | None = None
    token_file: EnvironmentName | None = None


class ReleaseImages(Section):
    """The repository that released images go to. `key` is a variable with the file of a private key, for signatures."""

    repository: ImageRepository
    key: EnvironmentName | None = None


class Release(Section):
    """The conditions of releases, and the places where wheels and images go.

    Builds with one of `test_triggers` go to `test_index`, and those of a release tag, `v1.2.3` in the backend's repository,
    to `index` and, by that version, to the repository of `images`. `variants` limits it to some; images of others than the
    first have the variant in their tags. With `public_versions`, the wheels of runs from a release tag have no local part in
    their versions. With `verify`, what an index has is installed from there in a clean environment,
    and passes the smoke suites again.
    """

    gate: Gate = Gate()
    variants: tuple[str, ...] = ()
    channel: Channel | None = None
    test_index: Index | None = None
    test_triggers: tuple[Released, ...] = ("main",)
    index: Index | None = None
    public_versions: bool = False
    sigstore: Sigstore = Sigstore()
    images: ReleaseImages | None = None
    verify: bool = True

    @model_validator(mode="after")
    def _two_indexes(self) -> Release:
        if self.index is not None and self.test_index is not None and self.index.upload == self.test_index.upload:
            raise ValueError("index and test_index must be two indexes: tests would be releases")
        return self
