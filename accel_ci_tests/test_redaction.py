from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from accel_ci.redaction import OF_THIS_PROCESS, Redactor, credentials_in, redact_records, without_credentials
from accel_ci.secrets import is_secret_name, learn_secrets
from accel_ci.storage.redacted_folder import redact_folder
from accel_ci_tests.fixtures.checkout import ROOT

SECRET = """s3cr3t=t'o"k<e>n&\\x/ü"""


def _as_gson(text: str) -> str:
    text = json.dumps(text, ensure_ascii=False)[1:-1]
    for letter in "<>&='":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


@pytest.mark.parametrize(
    "form",
    [
        SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], _as_gson(SECRET), repr(SECRET)[1:-1],
        html.escape(SECRET), quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET),
    ],
    ids=["plain", "json", "utf-8 json", "gson", "repr", "html", "path", "url", "form"],
)  # fmt: skip
def test_a_secret_goes_in_every_form(form: str) -> None:
    redactor = Redactor([SECRET])
    assert redactor.text(f"before {form} after") == "before *** after"
    assert redactor.content(f"before {form} after".encode()) == b"before *** after"


@pytest.mark.parametrize("user", ["", "a", "ab", "abc", "someone"])
def test_a_secret_goes_from_the_headers_of_basic_authentication(user: str) -> None:
    header = base64.b64encode(f"{user}:{SECRET}".encode()).decode()
    shown = Redactor([SECRET]).text(f"Authorization: Basic {header}")
    assert "***" in shown
    left = shown.rpartition(" ")[2].partition("***")[0]
    assert b"s3" not in base64.b64decode(left[: len(left) // 4 * 4])


def test_each_line_of_a_key_is_a_secret() -> None:
    key = "-----BEGIN KEY-----\n" + "\n".join(letter * 64 for letter in "abc") + "\n-----END KEY-----"
    assert Redactor([key]).text(f"x {'b' * 64}") == "x ***"


def test_what_has_ended_is_forgotten() -> None:
    redactor = Redactor(["a-token-of-an-hour", "a-token-for-ever"])
    redactor.forget(["a-token-of-an-hour", "never learnt"])
    assert redactor.text("a-token-of-an-hour a-token-for-ever") == "a-token-of-an-hour ***"
    redactor.forget(["a-token-for-ever"])
    assert (redactor.text("a-token-for-ever"), redactor.content(b"a-token-for-ever")) == (
        "a-token-for-ever",
        b"a-token-for-ever",
    )
    assert (redactor.secrets, redactor.pattern) == (frozenset(), None)


def test_what_is_short_stays() -> None:
    assert Redactor(["", "on", "12345"]).text("on 12345") == "on 12345"


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("https://me:p%40ssword@host/x", {"p%40ssword", "p@ssword", "me:p%40ssword", "me:p@ssword"}),
        ("x @ git+https://ghp_abcdef@host/x", {"ghp_abcdef"}),
        ("https://ghp_abcdef:x-oauth-basic@host/x", {"ghp_abcdef", "ghp_abcdef:x-oauth-basic"}),
        ("https://oauth2:glpat-abc@host/x", {"glpat-abc", "oauth2:glpat-abc"}),
        ("postgresql+psycopg2://ci:hunter22@db/ci", {"hunter22", "ci:hunter22"}),
        ("ssh://git@host/x and https://host/a@b", set()),
    ],
)
def test_credentials_are_found_in_addresses(text: str, secrets: set[str]) -> None:
    assert credentials_in(text) == secrets
    assert not any(secret in without_credentials(text) for secret in secrets)


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PGPASSWORD", "apiKey", "DB_PASS", "MY_CREDENTIALS"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "TOKENIZERS_PARALLELISM",
        "MONKEY",
        "KEYBOARD",
        "SSH_AUTH_SOCK",
        "AWS_SHARED_CREDENTIALS_FILE",
        "PASSENGER",
        "DAGSTER_RUN_STEP_KEY",
        "dagster/partition_key",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment of a user with a home folder; what is learned is forgotten after the test."""
    for name in ("_secrets", "_pattern", "_bytes"):
        monkeypatch.setattr(OF_THIS_PROCESS, name, getattr(OF_THIS_PROCESS, name))
    return {"HOME": str(tmp_path)}


def test_the_files_of_tools_are_read(tmp_path: Path, learned: Mapping[str, str]) -> None:
    files = {
        ".docker/config.json": json.dumps({"auths": {"r.example": {"auth": base64.b64encode(b"me:docker-pass").decode()}}}),
        ".aws/credentials": "[default]\naws_access_key_id = AKIAEXAMPLE12345\naws_secret_access_key = aws+secret/1\n",
        ".netrc": "machine h login me password netrc-pass\n",
        ".config/pip/pip.conf": "[global]\nindex-url = https://me:pip-pass1@h/simple\n",
        ".config/uv/uv.toml": 'index-url = "https://me:uv-pass12@h/simple"\n',
        ".git-credentials": "https://me:git-pass1@h\n",
        "dagster.yaml": "storage: {postgres: {postgres_db: {password: dagster-pass1}}}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    learn_secrets(None, learned, [tmp_path])
    expected = {
        "docker-pass", "AKIAEXAMPLE12345", "aws+secret/1", "netrc-pass", "pip-pass1", "uv-pass12",
        "git-pass1", "dagster-pass1",
    }  # fmt: skip
    assert expected <= OF_THIS_PROCESS.secrets


def test_ordinary_values_are_not_learned(learned: Mapping[str, str]) -> None:
    """A manifest without the word `created_at` would be of no use."""
    ordinary = {"SORT_KEY": "created_at", "API_KEY": "12345678", "SOME_TOKEN": "/run/token-1", "A_SECRET": "true"}
    before = OF_THIS_PROCESS.secrets
    learn_secrets(None, {**learned, **ordinary}, [])
    assert before == OF_THIS_PROCESS.secrets


def test_a_key_of_a_tag_or_a_taint_is_a_name(learned: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy" / "kubernetes" / "base" / "dagster.yaml").read_text())
    before = OF_THIS_PROCESS.secrets
    learn_secrets({"pool": {"tolerations": [{"key": "example.com/card-taint", "operator": "Exists"}]}}, learned, [tmp_path])
    assert before == OF_THIS_PROCESS.secrets
    learn_secrets({"headers": {"key": "hf_abc123def"}}, learned, [])
    assert "hf_abc123def" in OF_THIS_PROCESS.secrets


def test_a_document_names_its_secrets(learned: Mapping[str, str]) -> None:
    document = {
        "rbe": {"headers": {"x-api-key": "MINE"}},
        "upstream": {"repository": "https://t0ken-of-git@h/x"},
        "pool": {"environment": {"HUB_TOKEN": "hf_abc123", "MODE": "fast-mode-1"}},
    }
    before = OF_THIS_PROCESS.secrets
    learn_secrets(document, {**learned, "MINE": "header-value"}, [])
    assert OF_THIS_PROCESS.secrets - before == {"t0ken-of-git", "hf_abc123", "header-value"}


def test_the_files_of_workers_are_redacted(tmp_path: Path, learned: Mapping[str, str]) -> None:
    learn_secrets(None, {**learned, "A_TOKEN": "file-token-1"}, [])
    (tmp_path / "w").mkdir()
    held, other, outside = tmp_path / "w" / "log", tmp_path / "w" / "other", tmp_path / "outside"
    for file in (held, outside):
        file.write_bytes(b"\xff file-token-1\n")
    other.write_bytes(b"\xff nothing\n")
    (tmp_path / "w" / "link").symlink_to(outside)
    assert redact_folder(tmp_path / "w") == [held]
    assert held.read_bytes() == b"\xff ***\n"
    assert outside.read_bytes() == b"\xff file-token-1\n"


def test_logging_a_message_with_arguments(learned: Mapping[str, str], caplog: pytest.LogCaptureFixture) -> None:
    learn_secrets(None, {**learned, "A_TOKEN": "log-token-1"}, [])
    before = logging.getLogRecordFactory()
    try:
        redact_records()
        logging.getLogger("accel_ci.some").warning("it is %s", "log-token-1")
    finally:
        logging.setLogRecordFactory(before)
    assert [record.getMessage() for record in caplog.records] == ["it is ***"]


def test_what_a_program_tells_github_to_mask_goes_from_its_output() -> None:
    told = Redactor().text("Uploading\n::add-mask::pypi-AgEIcHlw\nthe token pypi-AgEIcHlw is refused\n::add-mask::no\n")
    assert told == "Uploading\n::add-mask::***\nthe token *** is refused\n::add-mask::no\n"
