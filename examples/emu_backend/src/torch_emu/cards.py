"""The emulated cards: those that this machine has, and those that this process sees.

A card has a physical id, the same in every process. A device index, as in `emu:0`, counts only visible cards. The
conversion between them belongs here; nothing here needs torch.
"""

import os
import re
from collections.abc import Sequence
from functools import cache

from torch_emu.faults import Faults, active

COUNT_VARIABLE = "EMU_CARDS"
VISIBLE_VARIABLE = "EMU_VISIBLE_CARDS"
DEFAULT_COUNT = 2
# PyTorch stores a device index as a signed eight-bit number.
MOST = 128

_ID = re.compile(r"-?\d+")


class CardsError(ValueError):
    """A variable that describes the cards is malformed."""


def count_from(text: str | None) -> int:
    """Return the number of cards of the machine, given the value of EMU_CARDS."""
    if text is None or not text.strip():
        return DEFAULT_COUNT
    count = int(text) if re.fullmatch(r"\s*\d+\s*", text) else -1
    if not 0 <= count <= MOST:
        raise CardsError(f"{COUNT_VARIABLE}={text!r} must be a whole number from 0 to {MOST}")
    return count


def present_from(count: int, faults: Faults) -> tuple[int, ...]:
    """Return the physical ids of the present cards, given their number and the missing ones."""
    if faults.all_cards_missing:
        return ()
    return tuple(card for card in range(count) if card not in faults.missing_cards)


def visible_from(text: str | None, present: Sequence[int]) -> tuple[int, ...]:
    """Return the physical ids of the visible cards, in device order, given the value of EMU_VISIBLE_CARDS.

    As with CUDA_VISIBLE_DEVICES, an empty value hides all cards, and a card that does not exist hides itself and
    those listed after it.
    """
    if text is None:
        return tuple(present)
    seen: list[int] = []
    hidden = False
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        if not _ID.fullmatch(part):
            raise CardsError(
                f"{VISIBLE_VARIABLE}={text!r}: {part!r} is not a card; use physical ids separated by commas, as in 0,1"
            )
        card = int(part)
        if card in seen:
            raise CardsError(f"{VISIBLE_VARIABLE}={text!r} lists card {card} twice")
        hidden = hidden or card not in present
        if not hidden:
            seen.append(card)
    return tuple(seen)


@cache
def visible() -> tuple[int, ...]:
    """Return the physical id of each device index of this process, read from the environment once."""
    present = present_from(count_from(os.environ.get(COUNT_VARIABLE)), active())
    return visible_from(os.environ.get(VISIBLE_VARIABLE), present)


def physical(index: int) -> int:
    """Return the physical card of a device index; raise RuntimeError if there is none."""
    cards = visible()
    if not 0 <= index < len(cards):
        seen = f"{len(cards)} visible, with the physical ids {list(cards)}" if cards else "no card is visible"
        raise RuntimeError(f"emu:{index} does not exist: {seen}")
    return cards[index]
