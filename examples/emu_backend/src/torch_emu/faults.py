"""Parse the requested faults: the language of EMU_FAULTS.

Only parsing belongs here. The effects of faults are in `injection`, their memory between processes is in `state`, and
missing cards are in `cards`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

VARIABLE = "EMU_FAULTS"
DEFAULT_SLOWDOWN = 5.0
ALLOWED = (
    "flaky:<op>, crash:<op>, hang:<op>, bad_card:<id>, bad_card:<id>@<n>, missing_device, missing_device:<id>, "
    "slow_card:<id>, slow_card:<id>@<factor>"
)

_ENTRY = re.compile(r"(?P<kind>[a-z_]+)(?::(?P<subject>[^@]*))?(?:@(?P<amount>.*))?")
_OP = re.compile(r"[A-Za-z_]\w*")
_CARD = re.compile(r"\d+")


class FaultError(ValueError):
    """EMU_FAULTS has an invalid entry."""


@dataclass(frozen=True)
class Faults:
    """All faults of this process; the default has none."""

    flaky: frozenset[str] = frozenset()
    """Operators that give wrong results in every other process."""
    crash: frozenset[str] = frozenset()
    """Operators that kill the process."""
    hang: frozenset[str] = frozenset()
    """Operators that never return."""
    bad_cards: Mapping[int, int] = field(default_factory=dict)
    """Physical card to the number of kernels that it still runs correctly."""
    missing_cards: frozenset[int] = frozenset()
    """Physical cards that are missing."""
    all_cards_missing: bool = False
    """True if all cards are missing."""
    slow_cards: Mapping[int, float] = field(default_factory=dict)
    """Physical card to the factor by which its kernels are slower."""

    @property
    def ops(self) -> frozenset[str]:
        """Return the operators that any fault names."""
        return self.flaky | self.crash | self.hang

    @property
    def remembers(self) -> bool:
        """Return whether a fault needs memory that outlives the process."""
        return bool(self.flaky) or any(kernels > 0 for kernels in self.bad_cards.values())

    @property
    def touches_kernels(self) -> bool:
        """Return whether any fault changes what happens when a kernel runs."""
        return bool(self.ops or self.bad_cards or self.slow_cards)


def _refuse(entry: str, why: str) -> FaultError:
    return FaultError(f"{VARIABLE}: {entry!r} {why}; allowed, separated by commas: {ALLOWED}")


def _op(entry: str, subject: str | None, amount: str | None) -> str:
    if amount is not None or subject is None or not _OP.fullmatch(subject):
        raise _refuse(entry, "must name one aten operator, without overload")
    return subject


def _card(entry: str, subject: str | None) -> int:
    if subject is None or not _CARD.fullmatch(subject):
        raise _refuse(entry, "must name one card by its physical id")
    return int(subject)


def _kernels(entry: str, amount: str | None) -> int:
    if amount is None:
        return 0
    if not _CARD.fullmatch(amount):
        raise _refuse(entry, "must have a whole number of kernels after the @")
    return int(amount)


def _factor(entry: str, amount: str | None) -> float:
    try:
        factor = DEFAULT_SLOWDOWN if amount is None else float(amount)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < float("inf"):
        raise _refuse(entry, "must have a factor of at least 1 after the @")
    return factor


def parse(text: str) -> Faults:
    """Return the faults that the text requests; raise FaultError with the entry if one is invalid."""
    ops: dict[str, set[str]] = {"flaky": set(), "crash": set(), "hang": set()}
    bad: dict[int, int] = {}
    slow: dict[int, float] = {}
    missing: set[int] = set()
    all_missing = False
    for entry in (part.strip() for part in text.split(",")) if text.strip() else ():
        match = _ENTRY.fullmatch(entry)
        kind, subject, amount = match.group("kind", "subject", "amount") if match else (None, None, None)
        if kind in ops:
            ops[kind].add(_op(entry, subject, amount))
        elif kind == "bad_card":
            card = _card(entry, subject)
            if card in bad:
                raise _refuse(entry, f"names card {card} a second time")
            bad[card] = _kernels(entry, amount)
        elif kind == "slow_card":
            card = _card(entry, subject)
            if card in slow:
                raise _refuse(entry, f"names card {card} a second time")
            slow[card] = _factor(entry, amount)
        elif kind == "missing_device" and amount is None:
            if subject is None:
                all_missing = True
            else:
                missing.add(_card(entry, subject))
        else:
            raise _refuse(entry, "is not a known fault")
    return Faults(
        flaky=frozenset(ops["flaky"]),
        crash=frozenset(ops["crash"]),
        hang=frozenset(ops["hang"]),
        bad_cards=bad,
        missing_cards=frozenset(missing),
        all_cards_missing=all_missing,
        slow_cards=slow,
    )


@cache
def active() -> Faults:
    """Return the faults of this process, read once: they do not change while a process runs."""
    return parse(os.environ.get(VARIABLE, ""))
