"""The allowlist's format, its mistakes with their lines, and reloading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_ci.errors import ConfigError
from accel_ci.relay import allowlist
from accel_ci.relay.allowlist import Allowlist, AllowlistFile, Downstream, parse_allowlist, read_allowlist

GOOD = """\
L1: [org/plain]
L2:
  - org/reporting
  - org/nightly-only: {events: [nightly], oncalls: [ann]}
L3:
  spyre:
    org/labelled: [bob, eve]
L4:
  - org/critical: "ann, bob"
"""


def test_all_levels() -> None:
    found = parse_allowlist(GOOD, "allowlist.yml")
    assert found.downstreams == (
        Downstream("org/plain", "L1"),
        Downstream("org/reporting", "L2"),
        Downstream("org/nightly-only", "L2", oncalls=("ann",), events=frozenset({"nightly"})),
        Downstream("org/labelled", "L3", "spyre", ("bob", "eve")),
        Downstream("org/critical", "L4", oncalls=("ann", "bob")),
    )
    assert found.recipients("push") == ["org/plain", "org/reporting", "org/labelled", "org/critical"]
    assert found.recipients("pull_request", "spyre") == ["org/labelled"]
    assert found.recipients("pull_request", "other") == []
    assert found.find("ORG/Critical") == found.downstreams[-1]


def test_the_accounts_of_an_enterprise_have_an_underscore() -> None:
    assert parse_allowlist("L1: [mona_octo/backend]\n", "allowlist.yml").recipients("push") == ["mona_octo/backend"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "L1:\nL2: []\n"])
def test_nobody(text: str) -> None:
    assert parse_allowlist(text, "allowlist.yml").downstreams == ()


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("L1: [a/b]\nL5: [c/d]\n", "2: 'L5' is no level"),
        ("L1: [a/b]\nL2:\n - A/B\n", "3: A/B is also in line 1"),
        ("L1: [a/b, A/B]\n", "1: A/B is also in line 1"),
        ("{L1: [a/b], L4: [a/b]}\n", "1: a/b is also in line 1"),
        ("L3: {x: {a/b: [], c/d: []}}\nL4: [{c/d: e}]\n", "2: c/d is also in line 1"),
        ("L1: [a/b]\nL1: [c/d]\n", "2: the file: 'L1' appears twice"),
        ("L2:\n - a/b: {events: [nightly]}\n - c/d: {evens: []}\n", "3: c/d: 'evens' is no key"),
        ("L2: [{a/b: {events: [weekly]}}]\n", "1: a/b: 'weekly' is no event"),
        ("L2: [{a/b: {events: []}}]\n", "1: a/b.events names no event"),
        ("L2:\n - {a/b: x, c/d: y}\n", "2: an entry of L2 has one repository, not 2"),
        ("L1:\n  a/b: x\n", "2: L1 must be a list"),
        ("L3: [a/b]\n", "1: L3 must be a mapping"),
        ("L3:\n  x: [a/b]\n", "2: L3.x must be a mapping"),
        ("L3:\n  'x y': {a/b: []}\n", "2: 'x y' cannot be a device"),
        ("L1: [../b]\n", "1: '../b' is no repository"),
        ("L1: [a/..]\n", "1: 'a/..' is no repository"),
        ("L1: [a/b/c]\n", "1: 'a/b/c' is no repository"),
        ("L1:\n - a\n", "2: 'a' is no repository"),
        ("L1:\n - [a/b]\n", "2: an entry of L1 must be a mapping"),
        ("? [x]\n: y\n", "1: the file: a key must be a text"),
        ("- a/b\n", "1: the file must be a mapping"),
        ("L1: [a/b\n", "2: not YAML"),
        ("L1: \x00\n", "1: not YAML"),
    ],
)
def test_mistakes_have_their_line(text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_allowlist(text, "allowlist.yml")
    assert str(raised.value).startswith(f"allowlist.yml:{mistake}")


def test_all_mistakes_are_told_together() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_allowlist("L9: []\nL1: [x]\n", "a.yml")
    assert [line.split(": ")[0] for line in str(raised.value).splitlines()] == ["a.yml:1", "a.yml:2"]


def _settled(file: AllowlistFile) -> Allowlist:
    """The allowlist after two looks at a file that is at rest."""
    file.current()
    return file.current()


def test_a_changed_file_is_reloaded_and_a_wrong_one_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "allowlist.yml"

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(path)

    replace("L1: [a/b]\n")
    file = AllowlistFile(path, checked_every_s=0)
    replace("L1: [a/b, c/d]\n")
    assert _settled(file).recipients("push") == ["a/b", "c/d"]
    replace("L1: [a/b, c/d, oops]\n")
    assert _settled(file).recipients("push") == ["a/b", "c/d"]
    assert "allowlist.yml:1: 'oops' is no repository" in caplog.text
    path.unlink()
    assert _settled(file).recipients("push") == ["a/b", "c/d"]
    replace("L2: [e/f]\n")
    assert _settled(file).recipients("push") == ["e/f"]


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "allowlist.yml"
    path.write_text("L1: [a/b]\n")
    file, seen = AllowlistFile(path, checked_every_s=0), set[tuple[str, ...]]()
    with path.open("w") as writer:
        for part in ("", "L1:\n", "- a/b\n", "- c/d\n"):
            writer.write(part)
            writer.flush()
            seen.add(tuple(file.current().recipients("push")))
    assert seen == {("a/b",)}
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert file.current().recipients("push") == ["a/b", "c/d"], "at the first look, which may be hours later"
    with path.open("a") as writer:
        writer.write("- e/f\n")
    assert _settled(file).recipients("push") == ["a/b", "c/d", "e/f"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "allowlist.yml"
    with pytest.raises(ConfigError, match="cannot be read"):
        AllowlistFile(path)
    path.write_bytes(b"L1: [\xff]")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_allowlist(path)
    path.write_bytes(b"#" * (allowlist.LARGEST_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_allowlist(path)
