"""The interface of claims: which worker runs a batch, decided in one place. `choice.py` decides which batch to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Claims(Protocol):
    """A store of claims, in which one of many racing owners gets a batch."""

    def take(self, batch: str) -> bool:
        """Claim a batch; False when it has an owner."""

    def taken(self) -> Mapping[str, str]:
        """The owners of batches by batch id, as far as they are known."""
