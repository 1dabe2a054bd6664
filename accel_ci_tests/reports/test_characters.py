"""Bytes to characters: encodings, forbidden and invalid ones."""

from __future__ import annotations

import gzip

import pytest

from .comparison import end, parse_bytes

CASE = '<testsuite><testcase classname="c" name="{}" time="1"/></testsuite>'


@pytest.mark.parametrize(
    ("data", "name", "warnings"),
    [
        (CASE.format("é").encode(), "é", ""),
        (b"\xef\xbb\xbf" + CASE.format("é").encode(), "é", ""),
        (b"\xef\xbb\xbf\n <?xml version='1.0'?>" + CASE.format("é").encode(), "é", "leading_whitespace"),
        (b"\n" + CASE.format("é").encode(), "é", ""),
        (("\ufeff" + CASE.format("é漢")).encode("utf-16-le"), "é漢", ""),
        (("\ufeff \n<?xml version='1.0'?>" + CASE.format("é")).encode("utf-16-be"), "é", "leading_whitespace"),
        (("<?xml version='1.0'?>" + CASE.format("é")).encode("utf-16-le"), "é", ""),
        (("<?xml version='1.0'?>" + CASE.format("é")).encode("utf-16-be"), "é", ""),
        (b"<?xml version='1.0' encoding='Latin-1'?>" + CASE.format("é").encode("latin-1"), "é", ""),
        (b'<?xml version="1.0" encoding = "WINDOWS-1252"?>' + CASE.format("€").encode("cp1252"), "€", ""),
        (
            b"<?xml version='1.0' encoding='cp1252'?>" + CASE.format("@").encode().replace(b"@", b"\x81"),
            "\ufffd",
            "invalid_encoding",
        ),
        (b"<?xml version='1.0' encoding='US-ASCII'?>" + CASE.format("é").encode(), "é", ""),
        (b"<?xml version='1.0' encoding='UTF-16LE'?>" + CASE.format("é").encode(), "é", "encoding_mismatch"),
        (b"<?xml version='1.0' encoding='utf-32'?>" + CASE.format("é").encode(), "é", "encoding_mismatch"),
        (b"<?xml version='1.0' encoding='koi8-r'?>" + CASE.format("é").encode(), "é", "encoding_unknown"),
        (b"<?xml version='1.1'?>" + CASE.format("&#x1b;").encode(), "\\u{1B}", "xml_1_1 invalid_char name_escaped"),
        (CASE.format("@").encode().replace(b"@", b"a\xe9\xffb\xe6\xbc"), "a\ufffd\ufffdb\ufffd", "invalid_encoding"),
        (CASE.format("\x00\x0b\ufffe").encode(), "\\u{0}\\u{B}\\u{FFFE}", "invalid_char name_escaped"),
        (CASE.format("&#0;&#xD800;&#65535;").encode(), "\\u{0}\\u{D800}\\u{FFFF}", "invalid_char name_escaped"),
        (CASE.format("\x7f\x85").encode(), "\\u{7F}\x85", "name_escaped"),
        (CASE.format("&#10;\\u{A}\\u").encode(), "\\u{A}\\u{5C}u{A}\\u", "name_escaped"),
        (CASE.format("\ufffd\ue01b\U0010ffff").encode(), "\ufffd\ue01b\U0010ffff", ""),
        (CASE.format("a\r\nb\tc").encode(), "a b c", ""),
        (CASE.format("&#13;&#9; x ").encode(), "\\u{D}\\u{9} x ", "name_escaped"),
    ],
)
def test_names(data: bytes, name: str, warnings: str) -> None:
    for given in (data, gzip.compress(data)):
        report = parse_bytes(given)
        assert end(report) == ("complete", set(warnings.split()))
        assert [row.name for row in report.rows] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "<system-out>\x1b[0m</system-out>",
        "<!-- \x01 -->",
        "<?p \x02?>",
        "<![CDATA[\x03]]>",
        "&#4;",
        "<x a='\x05'/>",
        "<x>&#8;</x>",
    ],
)
def test_forbidden_characters_are_found_everywhere(text: str) -> None:
    data = f'<testsuite>{text}<testcase classname="c" name="a" time="1">{text}</testcase></testsuite>'.encode()
    assert parse_bytes(data).warnings == {"invalid_char"}


@pytest.mark.parametrize(
    "data", [b"", b" \r\n\t", b"\xef\xbb\xbf\n", " \n".encode("utf-16"), gzip.compress(b"", mtime=0), b"\x1f\x8b"]
)
def test_input_without_content_is_empty(data: bytes) -> None:
    report = parse_bytes(data)
    assert (*end(report), *report.rows) == ("empty", {"empty_file"})


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04", b"Traceback", b"\x00<testsuite/>", b"[]", b'{"a": 1}', b'{\n"id": 1\n}', b"{"]
)
def test_other_formats_are_rejected(data: bytes) -> None:
    report = parse_bytes(data)
    assert (*end(report), *report.rows) == ("rejected", {"unknown_format"})


def test_no_warnings_for_text_after_the_damage() -> None:
    data = b'<testsuite><testcase classname="c" name="a" time="1"/></oops>\x1b\xff<testcase/>'
    assert parse_bytes(data).warnings == {"malformed"}
    assert parse_bytes(data.replace(b"oops", b"testsuite")).warnings == {"trailing_content"}
