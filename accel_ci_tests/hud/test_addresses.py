"""Addresses: stable, and safe in every place that they are put."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from accel_ci.hud.addresses import build_address, incident_address, test_address
from accel_ci.model import Build

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def test_addresses_stay_as_they_are() -> None:
    assert test_address("pytorch", "test/test_ops.py::TestA::test_b[x-1.5]") == (
        "test.html#pytorch/test/test_ops.py::TestA::test_b%5Bx-1.5%5D"
    )
    assert build_address(Build("nightly-20261127", "py3.11 <b>")) == "builds/nightly-20261127~py3.11--b-.html"
    assert incident_address("0a1b") == "incidents.html#i-0a1b"


@given(_TEXT, _TEXT)
def test_an_address_names_exactly_one_test(suite: str, test: str) -> None:
    file, _, fragment = test_address(suite, test).partition("#")
    assert file == "test.html"
    assert re.fullmatch(r"[A-Za-z0-9._~/:@!$'()*,;=+%-]+", fragment)
    before, _, after = fragment.partition("/")
    assert (unquote(before), unquote(after)) == (suite, test)
