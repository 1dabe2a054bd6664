"""Format values for the page: durations, numbers, times, and hostile text with its control characters made visible.

Pure functions from one value to a string belong here. `render.py` leaves the escaping of HTML to Jinja2; `page.py` decides
what the page shows.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from datetime import datetime, timezone
from urllib.parse import urlsplit

UNKNOWN = "–"
_CONTROL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """Spell out every control, format and bidirectional character of `text`; line ends and tabs stay."""
    text = text.replace("\r\n", "\n")
    return "".join(f"[U+{ord(c):04X}]" if unicodedata.category(c) in _CONTROL and c not in "\n\t" else c for c in text)


def one_line(text: str, limit: int = 240) -> str:
    """Put `text` on one line, and leave out its middle if it is longer than `limit`."""
    if len(text) > limit:
        head = limit * 2 // 3
        text = f"{text[:head]} … {text[len(text) - (limit - head) :]}"
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def excerpt(text: str, limit: int = 6000) -> str:
    """The beginning and the end of a long text, where the reason for a failure is."""
    if len(text) <= limit:
        return visible(text)
    head = limit // 3
    return visible(f"{text[:head]}\n\n… {number(len(text) - limit)} characters left out …\n\n{text[head - limit :]}")


def first_line(text: str) -> str:
    """The first line that is not blank, without the folders of installed packages."""
    line = next((line.strip() for line in text[:4000].splitlines() if line.strip()), "")
    return one_line(re.sub(r"\S*/site-packages/", "", line), 160)


def quoted(word: str) -> str:
    """A word of a shell command. Control characters are spelt out, so that none acts on a terminal."""
    return shlex.quote(visible(word))


def duration(seconds: float | None) -> str:
    """Format seconds: `420 ms`, `8.4 s`, `1 m 42 s`, `2 h 05 m`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 or seconds == 0 else "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with thousands separators."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def size(size_bytes: int) -> str:
    """Format bytes in powers of 1,000."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def percent(share: float) -> str:
    """Format a share in percent, with one more digit if it is small."""
    return f"{share * 100:.2f} %" if 0 < share < 0.01 else f"{share * 100:.1f} %"


def in_utc(moment: datetime) -> datetime:
    """Convert `moment` to UTC; without a time zone, it is taken as UTC."""
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)


def utc(moment: datetime | None) -> str:
    """Format a time in UTC, to the minute."""
    return UNKNOWN if moment is None else f"{in_utc(moment):%Y-%m-%d %H:%M} UTC"


def web_link(url: str) -> str | None:
    """`url` without credentials if it is safe to link to (http or https with a host), else None."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or visible(url) != url or any(c.isspace() for c in url):
        return None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def repository_name(repository: str) -> str:
    """A repository for display, without the credentials that a URL can hold."""
    scheme, separator, rest = repository.partition("://")
    if not separator:
        return repository
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
