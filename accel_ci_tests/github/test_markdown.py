"""Hostile text in GitHub's Markdown: as code, outside of code, and in `<pre>`."""

from __future__ import annotations

import re
from html import unescape

import pytest
from markdown_it import MarkdownIt

from accel_ci.github.markdown import block, code, inert
from accel_ci.redaction import OF_THIS_PROCESS

HOSTILE = [
    "test_add[**bold**]",
    "a_b_c __init__ *x* ~~gone~~ `code` $x^2$",
    "[click](https://evil.example) ![x](https://evil.example/x.png) <https://evil.example>",
    "https://evil.example www.evil.example somebody@evil.example @everyone org/repo#12 GH-12 :tada:",
    "</code></pre><img src=x onerror=alert(1)><!-- &lt; &#60; &amp;",
    "a | b \\| c \\",
    "tests/unit/test_ops.py::test_add[float32-(2, 3)-'x']",
]
GITHUB = MarkdownIt("commonmark", {"linkify": False}).enable(["table", "strikethrough"])


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("around", ["%s", "| a | b |\n| --- | --- |\n| %s | c |", "<summary>%s</summary>"])
def test_code_shows_the_text_and_nothing_else(text: str, around: str) -> None:
    made = code(text)
    assert not re.search(r"[*_\[\]!@`~$|:.\\\\]", re.sub(r"&#\d+;|<!-- -->|</?code>", "", made))
    html = GITHUB.render(around % made)
    [inside] = re.findall(r"<code>(.*?)</code>", html, re.DOTALL)
    assert unescape(inside.replace("<!-- -->", "")) == text
    assert re.sub(r"<!-- -->", "", inside).count("<") == 0, "no element has come of it"
    assert "@evil" not in unescape(inside), "the two halves of an address of mail are apart"


@pytest.mark.parametrize("text", HOSTILE)
def test_text_outside_of_code_stays_text(text: str) -> None:
    html = GITHUB.render(f"Not built yet: {inert(text)}.")
    assert re.fullmatch(r"<p>Not built yet: [^<]*</p>\n", html)
    shown = unescape(html)[len("<p>Not built yet: ") : -len(".</p>\n")]
    assert shown.replace("\u200b", "") == text
    assert not re.search(r"[@#]\w", shown), "nobody is mentioned, and no issue is referred to"


def test_secrets_are_redacted_though_they_have_punctuation() -> None:
    OF_THIS_PROCESS.learn(["hunter_2*hunter&2"])
    for made in (code("with hunter_2*hunter&2"), inert("with hunter_2*hunter&2"), block("with hunter_2*hunter&2")):
        assert "hunter" not in made
