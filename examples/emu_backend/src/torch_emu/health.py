"""The health probe: check that each visible card computes correctly.

`python -m torch_emu.health` prints one line of JSON per card and exits with 0 only if there is a card and all are
healthy. It checks cards, so faults of operators do not affect it.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch_emu import cards, dispatch, injection
from torch_emu.tensor import NAME

SIDE = 16


@dataclass(frozen=True)
class Verdict:
    """The probe's result for one physical card; with card None, that there is no card."""

    card: int | None
    healthy: bool
    reason: str | None


def _run(operator: Any, *args: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    # Bypasses torch's dispatcher, whose first call to a device in Python imports torch.distributed.tensor, which takes
    # half as long as the import of torch itself. The rest of the path to the card is the same.
    return dispatch.run(operator, args, kwargs)


def _reason(index: int) -> str | None:
    aten = torch.ops.aten
    numbers = torch.arange(SIDE * SIDE, dtype=torch.float32).reshape(SIDE, SIDE)
    on_card = _run(aten._to_copy.default, numbers, device=torch.device(NAME, index))
    if not torch.equal(_run(aten._to_copy.default, on_card, device=dispatch.CPU), numbers):
        return "numbers change on the way to the card and back"
    # Whole numbers, small enough to be exact in float32, so that they can be compared for equality.
    for operator, expected in ((aten.add.Tensor, numbers + numbers), (aten.mm.default, numbers @ numbers)):
        found = _run(aten._to_copy.default, _run(operator, on_card, on_card), device=dispatch.CPU)
        difference = (found - expected).abs().max().item()
        if difference != 0:
            return f"{operator.name()} gives wrong numbers, off by up to {difference:g}"
    return None


def probe() -> Iterator[Verdict]:
    """Yield the verdict on each visible card, in device order."""
    for index, card in enumerate(cards.visible()):
        with injection.probing():
            try:
                reason = _reason(index)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        yield Verdict(card=card, healthy=reason is None, reason=reason)


def main() -> int:
    """Print the verdicts and return the exit code."""
    verdicts = list(probe()) or [Verdict(card=None, healthy=False, reason="no card is visible")]
    for verdict in verdicts:
        print(json.dumps(asdict(verdict)), flush=True)
    return 0 if all(verdict.healthy for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
