"""The settings of the relay's server: `relay.yaml`.

The values and their checks belong here, and reading the secrets that they name. The allowlist is a
separate file (`accel_ci.relay.allowlist`).
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from accel_ci.config.loading import read_section
from accel_ci.config.section import Section
from accel_ci.config.values import Endpoint, EnvironmentName, Seconds
from accel_ci.errors import ConfigError
from accel_ci.github.answers import LONGEST_WAIT_S
from accel_ci.redaction import OF_THIS_PROCESS, credentials_in
from accel_ci.relay.messages import LARGEST_CALLBACK

if TYPE_CHECKING:
    from accel_ci.relay.results_store import ResultsStore

SETTINGS_NAME = "relay.yaml"
Count = Annotated[int, Field(ge=1)]
Identifier = Annotated[str, Field(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,99}\z")]


def _repository(value: str) -> str:
    owner, _, name = value.partition("/")
    if not owner or not name or "/" in name or any(letter.isspace() for letter in value):
        raise ValueError("must be owner/name, such as 'pytorch/pytorch'")
    return value


def check_address(value: str) -> str:
    """Return an address to listen on. Raises `ValueError` if it is not `HOST:PORT`."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as '127.0.0.1:8080'; port 0 stands for a free one")
    return value


def is_safe(url: str) -> bool:
    """Return whether nobody between can change what an address answers: it is https, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    on_this_machine = host == "localhost"
    with suppress(ValueError):
        on_this_machine = ipaddress.ip_address(host).is_loopback
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and on_this_machine))


def _safe(value: str) -> str:
    if not is_safe(value):
        raise ValueError("must begin with https://, since who changes the keys can forge every token")
    return value


Repository = Annotated[str, AfterValidator(_repository)]
SafeEndpoint = Annotated[Endpoint, AfterValidator(_safe)]


class SecretSource(Section):
    """A place of a secret: an environment variable, or a file with the secret alone."""

    variable: EnvironmentName | None = None
    file: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_of_them(cls, value: Any) -> Any:
        if isinstance(value, dict) and ("variable" in value) == ("file" in value):
            raise ValueError("must have either 'variable' or 'file'")
        return value

    def read(self, folder: Path, what: str) -> str:
        """Read the secret, and keep it out of all that this process shows. Raises `ConfigError` where it is missing."""
        if self.variable is not None:
            found, place = os.environ.get(self.variable, "").strip(), f"${self.variable}"
        else:
            path = folder / str(self.file)
            place = str(path)
            try:
                found = path.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{what}: {place} cannot be read: {type(error).__name__}") from None
        if not found:
            raise ConfigError(f"{what}: {place} is empty or not set")
        OF_THIS_PROCESS.learn({found, *credentials_in(found)})
        return found


class GitHubApp(Section):
    """A GitHub App, which each downstream installs."""

    id: Annotated[int, Field(ge=1)] | str
    """Its id, or its client id."""
    private_key: SecretSource
    """In PEM, as GitHub gives it."""
    installation: Annotated[int, Field(ge=1)] | None = None
    """One for all repositories; without it, GitHub is asked for that of each owner."""


class GitHubSettings(Section):
    """GitHub's API, and the token or App that may send `repository_dispatch` to the downstreams."""

    api: Endpoint = "https://api.github.com"
    token: SecretSource | None = None
    app: GitHubApp | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_of_them(cls, value: Any) -> Any:
        if isinstance(value, dict) and ("token" in value) == ("app" in value):
            raise ValueError("must have either 'token' or 'app'")
        return value


class Issuer(Section):
    """An issuer of OIDC tokens, and the way from a token to a repository.

    With `identity: repository` that is the claim of this name, as GitHub Actions sets it. With `identity: buildkite`, it is
    the entry of `pipelines` for `<organization_id>/<pipeline_id>`: the ids stay when a name is given up and taken by others.
    """

    issuer: SafeEndpoint
    """Exactly as in the claim `iss`, also with or without a slash at the end."""
    identity: Literal["repository", "buildkite"] = "repository"
    pipelines: dict[str, Repository] = Field(default_factory=dict)
    jwks_url: SafeEndpoint | None = None
    """The keys; without it, `<issuer>/.well-known/openid-configuration` names their address."""

    @model_validator(mode="after")
    def _pipelines_are_buildkites(self) -> Issuer:
        if self.pipelines and self.identity != "buildkite":
            raise ValueError("pipelines need identity: buildkite")
        if wrong := next((one for one in self.pipelines if len(one.split("/")) != 2 or not all(one.split("/"))), None):
            raise ValueError(f"pipelines: {wrong!r} must be organization_id/pipeline_id")
        return self


ISSUERS = (
    Issuer(issuer="https://token.actions.githubusercontent.com"),
    Issuer(issuer="https://agent.buildkite.com", identity="buildkite"),
)
"""Those of the public relay."""


def _distinct(value: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
    names = [one.issuer for one in value]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is there twice")
    return value


class OidcSettings(Section):
    """Limits of the tokens of callbacks, and of the keys that prove them."""

    leeway_s: Annotated[float, Field(ge=0, le=300)] = 60
    """The clocks of an issuer and of the relay may differ by so much."""
    keys_s: Seconds = 300
    """An issuer's keys are fetched again after so long: a key that it has withdrawn is good for no longer."""
    stale_keys_s: Seconds = 24 * 3600
    """While an issuer is down, its last keys stay good for so long."""
    cool_down_s: Seconds = 10
    """A key that is not known, and an issuer that is down, lead to a fetch no more often than this."""
    timeout_s: Seconds = 5
    """For a whole fetch of keys."""

    @model_validator(mode="after")
    def _keys_grow_old_before_they_end(self) -> OidcSettings:
        if self.stale_keys_s < self.keys_s:
            raise ValueError("stale_keys_s must be at least keys_s")
        return self


class WebhookLimits(Section):
    """Limits of what the server takes from outside."""

    body_bytes: Count = 2 * 1024 * 1024
    """As the public relay's cap."""
    request_s: Seconds = 10
    """For the headers, again for the body, and again for storing it. GitHub itself gives up after 10 s."""
    json_depth: Count = 64
    connections: Count = 250
    """Anybody may send a body and be slow with it: the memory for all of them is this times `body_bytes`."""


class TrySettings(Section):
    """Tries, pauses and limits of what is sent."""

    timeout_s: Seconds = 10
    lease_s: Seconds = 60
    """A try that a worker has begun, and not finished by then, goes to another one: the worker was killed."""
    tries: Count = 8
    first_pause_s: Seconds = 2
    longest_pause_s: Seconds = 900
    breaker_failures: Count = 5
    """After so many failures in a row of one receiver, one thing at a time is tried, after a pause."""
    breaker_pause_s: Seconds = 30
    give_up_s: Seconds = 24 * 3600
    """Something that has waited for so long becomes a dead letter; `accel-ci relay replay` sends it after all."""
    keep_s: Seconds = 14 * 24 * 3600
    """All that was sent is kept for so long."""
    poll_s: Seconds = 0.5
    """A worker in another process learns of new work by looking so often."""

    @property
    def furthest_s(self) -> float:
        """Nothing is put off for longer, also not by a rate limit of GitHub."""
        return max(LONGEST_WAIT_S, self.longest_pause_s, self.breaker_pause_s, self.lease_s) + 60

    @model_validator(mode="after")
    def _lease_outlasts_a_try(self) -> TrySettings:
        if self.lease_s < 2 * self.timeout_s:
            raise ValueError("lease_s must be at least twice timeout_s: what takes longer than its lease is sent twice")
        return self


class CallbackSettings(Section):
    """Limits of callbacks, and times of jobs."""

    body_bytes: Count = LARGEST_CALLBACK
    request_s: Seconds = 10
    """For the body, and again for storing it; the headers have the time of a webhook."""
    json_depth: Count = 72
    """A callback repeats its webhook, one level deeper."""
    per_minute: Annotated[int, Field(ge=1, le=10_000)] = 100
    """At most so many callbacks of one downstream are taken in any 60 s, as by the public relay."""
    keep_s: Seconds = 3 * 24 * 3600
    """A job can begin for so long after its dispatch, and is remembered for so long after its end."""
    zombie_s: Seconds = 6 * 3600
    """A job in progress for so long is looked for at GitHub, and ended as lost unless its run goes on."""
    longest_s: Seconds = 24 * 3600
    """No job is in progress for longer, whatever GitHub says."""
    sweep_s: Seconds = 60
    """The pause between two looks for such jobs."""


class FanOutSettings(TrySettings):
    """Tries, pauses and limits of the dispatches. A redelivery is known for `keep_s`."""

    in_flight: Count = 2
    """At most so many dispatches to one downstream at a time, in each process."""


class ForwardSettings(TrySettings):
    """Tries, pauses and limits of the forwards: check runs, and results for the stores."""

    timeout_s: Seconds = 30
    """For all requests of one check run, and for each insertion into ClickHouse."""
    lease_s: Seconds = 120
    tries: Count = 20
    in_flight: Count = 4
    """At most so many check runs at a time, in each process."""
    batch: Count = 500
    """At most so many results at a time."""


class ResultsSettings(Section):
    """The store of results that the pages are made of."""

    folder: str = "results"
    """Relative to the settings' folder; with a bucket, the cache of it."""
    bucket: str | None = None
    """An S3 bucket in which servers on several machines share the results. The keys come from the environment."""
    prefix: str = "relay"
    endpoint: Endpoint | None = None
    region: str | None = None
    keep_days: Annotated[int, Field(ge=60)] = 400
    """Results are kept for so many days; the levels look at 60."""


class PagesSettings(Section):
    """The pages, which the server writes and serves at `/hud/`."""

    folder: str = "pages"
    """Relative to the settings' folder."""
    every_s: Seconds = 60
    """At most so often they are written, and only for new results."""
    busy_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Writing them takes at most this share of the time: the pause after a long write is longer."""
    pull_days: Count = 14
    """The page of a pull request goes after so many days without a result."""


class ClickHouseSettings(Section):
    """A ClickHouse that gets the results, too."""

    url: Endpoint
    database: Identifier = "default"
    table: Identifier = "relay_jobs"
    user: str = "default"
    password: SecretSource | None = None
    ca_file: str | None = None
    """Certificates that are trusted for https, where those of the system do not do; relative to the settings' folder."""


class RelaySettings(Section):
    """All of `relay.yaml`."""

    upstream: Repository
    webhook_secret: SecretSource
    github: GitHubSettings
    listen: Annotated[str, AfterValidator(check_address)] = "127.0.0.1:8080"
    allowlist: str = "allowlist.yml"
    database_file: str = "relay.sqlite"
    """SQLite; relative to the settings' folder."""
    database_url: SecretSource | None = None
    """PostgreSQL instead, which several servers share; the URL holds a password, so it is a secret."""
    webhook: WebhookLimits = WebhookLimits()
    fan_out: FanOutSettings = FanOutSettings()
    issuers: Annotated[tuple[Issuer, ...], Field(min_length=1), AfterValidator(_distinct)] = ISSUERS
    """Those that are trusted to say who calls."""
    oidc: OidcSettings = OidcSettings()
    callback: CallbackSettings = CallbackSettings()
    forwards: ForwardSettings = ForwardSettings()
    results: ResultsSettings = ResultsSettings()
    clickhouse: ClickHouseSettings | None = None
    pages: PagesSettings | None = None


@dataclass(frozen=True)
class RelayProject:
    """The settings with the folder of their file, to which paths are relative."""

    settings: RelaySettings
    folder: Path
    file: Path

    @property
    def results_folder(self) -> Path:
        """The folder of the results."""
        return self.folder / self.settings.results.folder

    def open_results(self) -> ResultsStore:
        """Open the store of results. Raises `AccelCiError` where a bucket cannot be used."""
        from accel_ci.relay.results_store import ResultsStore
        from accel_ci.storage.bucket import open_bucket
        from accel_ci.storage.s3 import environment_keys

        place = self.settings.results
        if place.bucket is None:
            return ResultsStore(self.results_folder)
        keys = environment_keys()
        OF_THIS_PROCESS.learn({key for key in keys if key})
        return ResultsStore(open_bucket(place.bucket, place.prefix, self.results_folder, place.endpoint, keys, place.region))

    @property
    def pages_folder(self) -> Path:
        """The folder of the pages."""
        return self.folder / (self.settings.pages or PagesSettings()).folder

    @property
    def allowlist(self) -> Path:
        """The file of the allowlist."""
        return self.folder / self.settings.allowlist

    def database_url(self) -> str:
        """Return the URL for SQLAlchemy. Raises `ConfigError` where its secret is missing."""
        if self.settings.database_url is None:
            return f"sqlite:///{(self.folder / self.settings.database_file).absolute()}"
        return self.settings.database_url.read(self.folder, "database_url")

    def webhook_secret(self) -> bytes:
        """Read the secret of the webhook's signatures."""
        return self.settings.webhook_secret.read(self.folder, "webhook_secret").encode()

    def clickhouse_password(self) -> str:
        """Read the password for ClickHouse; empty where none is named."""
        named = self.settings.clickhouse.password if self.settings.clickhouse is not None else None
        return named.read(self.folder, "clickhouse.password") if named is not None else ""

    def token(self) -> str:
        """Read the token for GitHub's API. Raises `ConfigError` where it is missing or no token, or an App is used."""
        if self.settings.github.token is None:
            raise ConfigError("github.token: is not set; the settings have a GitHub App instead")
        found = self.settings.github.token.read(self.folder, "github.token")
        if not found.isascii() or not found.isprintable() or " " in found:
            raise ConfigError(
                "github.token: is no token of GitHub: it has a space, a new line or another character of no token"
            )
        return found


def load_relay(path: Path) -> RelayProject:
    """Read the settings. Raises `ConfigError` with a line for each mistake."""
    return RelayProject(read_section(RelaySettings, path, path.name), path.absolute().parent, path.absolute())
