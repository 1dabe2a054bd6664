"""The cards that exist, and those that are visible."""

import pytest
from torch_emu.cards import CardsError, count_from, present_from, visible_from
from torch_emu.faults import parse


@pytest.mark.parametrize(("text", "count"), [(None, 2), ("", 2), ("0", 0), (" 4 ", 4), ("128", 128)])
def test_the_number_of_cards(text: str | None, count: int) -> None:
    """EMU_CARDS is a whole number, two by default."""
    assert count_from(text) == count


@pytest.mark.parametrize("text", ["-1", "two", "1.5", "129", "1,2"])
def test_a_malformed_number_is_refused(text: str) -> None:
    """The message names the variable and the value."""
    with pytest.raises(CardsError, match=f"EMU_CARDS='{text}'"):
        count_from(text)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("1", (1,)),
        ("2,0", (2, 0)),
        (" 0 , 1 ", (0, 1)),
        ("0,7,1", (0,)),
        ("7,0", ()),
        ("-1", ()),
        ("1,-1,0", (1,)),
    ],
)
def test_which_cards_are_seen(text: str | None, seen: tuple[int, ...]) -> None:
    """Order counts, and a card that does not exist hides itself and those after it."""
    assert visible_from(text, (0, 1, 2)) == seen


@pytest.mark.parametrize("text", ["a", "0;1", "0,", "0,,1", "emu:0", "0,0", "5,x"])
def test_a_malformed_choice_is_refused(text: str) -> None:
    """The message names the variable and the value, even if the bad part would not have mattered."""
    with pytest.raises(CardsError, match=f"EMU_VISIBLE_CARDS='{text}'"):
        visible_from(text, (0, 1, 2))


def test_a_missing_card_keeps_the_ids_of_the_others() -> None:
    """Physical ids do not change."""
    assert present_from(3, parse("missing_device:1")) == (0, 2)
    assert present_from(3, parse("missing_device")) == ()
    assert present_from(3, parse("missing_device:9")) == (0, 1, 2)
