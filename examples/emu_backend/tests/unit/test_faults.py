"""The language of EMU_FAULTS."""

import pytest
from torch_emu.faults import ALLOWED, FaultError, Faults, parse


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_asked_for_is_no_fault(text: str) -> None:
    """Faults are off by default."""
    assert parse(text) == Faults()
    assert not parse(text).touches_kernels


def test_every_fault() -> None:
    """Each kind of entry is understood, alone and with its amount."""
    text = (
        "flaky:atan2, flaky:mul,crash:tan,hang:exp,bad_card:0,bad_card:1@20,missing_device:3,missing_device:4,"
        "slow_card:0,slow_card:1@2.5"
    )
    assert parse(text) == Faults(
        flaky=frozenset({"atan2", "mul"}),
        crash=frozenset({"tan"}),
        hang=frozenset({"exp"}),
        bad_cards={0: 0, 1: 20},
        missing_cards=frozenset({3, 4}),
        slow_cards={0: 5.0, 1: 2.5},
    )
    assert parse("missing_device").all_cards_missing


@pytest.mark.parametrize(
    "entry",
    [
        "broken:add",
        "flaky",
        "flaky:",
        "flaky:add@2",
        "crash:add.Tensor",
        "hang:aten::add",
        "bad_card",
        "bad_card:x",
        "bad_card:-1",
        "bad_card:0@",
        "bad_card:0@1.5",
        "missing_device:",
        "missing_device:0@1",
        "slow_card:0@0.5",
        "slow_card:0@fast",
        "slow_card:0@inf",
        "Crash:add",
        "",
    ],
)
def test_what_means_nothing_is_refused_by_name(entry: str) -> None:
    """The message names the entry and lists what is allowed."""
    with pytest.raises(FaultError) as refusal:
        parse(f"slow_card:7,{entry}")
    assert repr(entry) in str(refusal.value)
    assert ALLOWED in str(refusal.value)


@pytest.mark.parametrize("text", ["bad_card:0,bad_card:0@5", "slow_card:1,slow_card:1@2"])
def test_two_answers_for_one_card_are_refused(text: str) -> None:
    """No entry silently wins over another."""
    with pytest.raises(FaultError, match="second time"):
        parse(text)
