"""The settings of the relay's server: the example of the documentation, mistakes with their lines, and secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from accel_ci.cli import main
from accel_ci.errors import ConfigError
from accel_ci.relay.allowlist import parse_allowlist
from accel_ci.relay.server.settings import load_relay
from accel_ci_tests.fixtures.checkout import ROOT

LEAST = "upstream: a/b\nwebhook_secret: {variable: RELAY_TEST_SECRET}\ngithub: {token: {file: token}}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "relay.yaml"
    path.write_text(text)
    return path


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    settings, allowlist = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "relay.md").read_text(), re.DOTALL)
    project = load_relay(write(tmp_path, settings))
    assert (project.settings.upstream, project.settings.fan_out.tries) == ("pytorch/pytorch", 8)
    assert project.allowlist == tmp_path / "allowlist.yml"
    assert project.database_url() == f"sqlite:///{tmp_path / 'relay.sqlite'}"
    assert [one.level for one in parse_allowlist(allowlist, "allowlist.yml").downstreams] == ["L1", "L2", "L2", "L3", "L4"]


def test_the_documentation_names_the_defaults(tmp_path: Path) -> None:
    settings = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "relay.md").read_text(), re.DOTALL)[0]
    shown, least = load_relay(write(tmp_path, settings)).settings, load_relay(write(tmp_path, LEAST)).settings
    for name in ("allowlist", "database_file", "webhook", "fan_out", "forwards", "results", "issuers", "oidc"):
        assert getattr(shown, name) == getattr(least, name)
    assert least.listen == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("upstream: a\n" + LEAST.partition("\n")[2], "relay.yaml:1: upstream: must be owner/name"),
        (LEAST + "listen: 8080\n", "relay.yaml:4: listen:"),
        (LEAST + "listen: x:99999\n", "relay.yaml:4: listen: must be HOST:PORT"),
        (LEAST + "alowlist: x\n", "relay.yaml:4: alowlist:"),
        (LEAST + "fan_out:\n  tries: 0\n", "relay.yaml:5: fan_out.tries:"),
        (LEAST + "fan_out:\n  timeout_s: 50\n", "lease_s must be at least twice timeout_s"),
        (LEAST + "database_url: {variable: A, file: b}\n", "must have either 'variable' or 'file'"),
        (LEAST + "database_url: {}\n", "must have either 'variable' or 'file'"),
        (LEAST + "upstream: c/d\n", "relay.yaml:4: upstream: appears twice"),
    ],
)
def test_mistakes_have_their_line(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_relay(write(tmp_path, text))
    assert mistake in str(raised.value)


def test_secrets_come_from_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = load_relay(write(tmp_path, LEAST))
    monkeypatch.delenv("RELAY_TEST_SECRET", raising=False)
    with pytest.raises(ConfigError, match=r"webhook_secret: \$RELAY_TEST_SECRET is empty or not set"):
        project.webhook_secret()
    with pytest.raises(ConfigError, match=r"github.token: .*token cannot be read"):
        project.token()
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="is empty or not set"):
        project.token()
    monkeypatch.setenv("RELAY_TEST_SECRET", "a secret of the tests")
    (tmp_path / "token").write_text("ghs_abc\n")
    assert (project.webhook_secret(), project.token()) == (b"a secret of the tests", "ghs_abc")
    monkeypatch.setenv("RELAY_TEST_SECRET", "a secret of the tests\r\n")
    assert project.webhook_secret() == b"a secret of the tests", "many tools put a new line at the end"
    for wrong in ("ghs_a\nbc", "ghs a", "ghs_\u00e4"):
        (tmp_path / "token").write_text(wrong, "utf-8")
        with pytest.raises(ConfigError, match=r"github.token: is no token of GitHub") as caught:
            project.token()
        assert wrong not in str(caught.value)


def test_check_allowlist(tmp_path: Path) -> None:
    path = tmp_path / "allowlist.yml"
    path.write_text("L1: [a/b]\nL2: [c/d, e/f]\n")
    done = CliRunner().invoke(main, ["relay", "check-allowlist", str(path)])
    assert (done.exit_code, done.output) == (0, "allowlist.yml is good: 1 at L1, 2 at L2, 0 at L3, 0 at L4\n")
    path.write_text("L1: [a/b]\nL2: [a/b]\n")
    done = CliRunner().invoke(main, ["relay", "check-allowlist", str(path)])
    assert done.exit_code == 2
    assert "allowlist.yml:2: a/b is also in line 1" in done.output
