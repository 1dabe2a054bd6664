"""The formatting of values on the page."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from accel_ci.hud import text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"), (float("nan"), "–"), (float("inf"), "–"), (-1, "–"), (0, "0 ms"), (0.0001, "<1 ms"), (0.42, "420 ms"),
        (0.9999, "1.0 s"), (8.44, "8.4 s"), (59.96, "1 m 00 s"), (102, "1 m 42 s"), (3599.6, "1 h 00 m"), (7500, "2 h 05 m"),
        (90_000, "1 d 01 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, words: str) -> None:
    assert text.duration(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1_482_113, "1.5 MB"), (204_000, "204 kB"), (3_200_000_000_000, "3,200.0 GB")],
)
def test_sizes(size: int, words: str) -> None:
    assert text.size(size) == words


def test_control_and_bidirectional_characters_are_spelled_out() -> None:
    assert text.visible("a\u202eb\x1b[31m\x00\u200b\u2028\ud800\r\nc\td") == (
        "a[U+202E]b[U+001B][31m[U+0000][U+200B][U+2028][U+D800]\nc\td"
    )
    assert text.visible("שלום ü 測試") == "שלום ü 測試"


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    assert text.one_line("a\nb\tc") == r"a\nb\tc"
    name = text.one_line("start" + "x" * 10_000 + "end", 60)
    assert (name[:6], name[-4:], len(name)) == ("startx", "xend", 63)
    message = text.excerpt("start" + "x" * 10_000 + "end", 6000)
    assert (message[:6], message[-4:]) == ("startx", "xend")
    assert "4,008 characters left out" in message
    assert text.first_line("\n \n  E   boom\nmore") == "E   boom"
    assert text.first_line("") == ""


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://github.com/pytorch/pytorch.git", "https://github.com/pytorch/pytorch.git"),
        ("http://user:secret@host:8080/a?b#c", "http://host:8080/a?b#c"),
        ("javascript:alert(1)", None), ("JAVASCRIPT://x/%0aalert(1)", None), ("data:text/html,x", None),
        ("file:///etc", None),
        ("git@github.com:a/b.git", None), ("https:///nohost", None), ("https://a b", None), ("https://a\u202eb", None),
        ("https://[", None), ("", None), (".", None),
    ],
)  # fmt: skip
def test_only_web_addresses_become_links_and_never_with_credentials(url: str, link: str | None) -> None:
    assert text.web_link(url) == link


def test_repositories_are_shown_without_credentials() -> None:
    assert text.repository_name("https://robot:p@ss@host/a/b.git") == "https://host/a/b.git"
    assert text.repository_name("git@github.com:a/b.git") == "git@github.com:a/b.git"


def test_times_are_utc_whatever_they_came_in() -> None:
    assert text.utc(datetime(2026, 11, 27, 1, 5, tzinfo=timezone(timedelta(hours=-5)))) == "2026-11-27 06:05 UTC"
    assert text.utc(datetime(2026, 11, 27, 1, 5)) == "2026-11-27 01:05 UTC"
    assert text.utc(None) == "–"


def test_small_shares_keep_a_digit() -> None:
    assert [text.percent(share) for share in (0.0, 0.0042, 0.021, 1.0)] == ["0.0 %", "0.42 %", "2.1 %", "100.0 %"]
