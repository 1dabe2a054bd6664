"""The `work` command: join a round, by a channel to its driver or by a signed URL, and run one worker on it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from . import round_folder
from .channel import Channel
from .ending import Termination, adopt_orphans, end_with_lock, end_with_parent, hide_memory
from .round import ChannelRound, lock_file
from .worker import Worker


def work_by_channel(
    plan: str, scratch: str, driver: str, worker: str, card: str, host: str, rank: int, parent: int | None, lock: str | None
) -> int:
    """Run one worker on a plan until it finishes, also because its card is unhealthy or its `parent` ends; return 0.

    `driver` is the channel to the driver (`channel.Channel`), `scratch` a folder for this worker alone, `host` the card's
    machine.
    """
    termination = _begin(parent)
    if lock is not None:
        end_with_lock(Path(lock))
    channel = Channel(driver)
    hide_memory()
    joined = ChannelRound(Path(plan), Path(scratch), channel, worker, card, host, rank)
    Worker(joined, termination).run()
    joined.close()
    return 0


def work_by_invitation(
    url: str, identity: str, host: str, scratch: str | None, card_environment: str | None, parent: int | None
) -> int:
    """Run one worker on the round that a signed URL invites to; return the exit code, 0 also when it is not needed.

    `card_environment` names the variable that tells the tests their card, None where it is set already.
    """
    from .signed_round import join
    from .signed_store import StoreError

    termination = _begin(parent)
    hide_memory()
    own = Path(scratch or tempfile.mkdtemp(prefix="accel-ci-worker-"))
    own.mkdir(parents=True, exist_ok=True)
    with lock_file(own / round_folder.ALIVE):
        try:
            joined = join(url, identity, host, own)
            if joined is None:
                sys.stderr.write("no slot of the round is free: this worker is not needed\n")
                return 0
            if card_environment is not None:
                os.environ[card_environment] = joined.card
            try:
                Worker(joined, termination).run()
            except SystemExit:
                joined.hurry()
                raise
            finally:
                joined.close()
        except StoreError as error:
            sys.stderr.write(f"this worker gives up: {error}\n")
            return 1
    return 0


def _begin(parent: int | None) -> Termination:
    termination = Termination(parent)
    if parent is not None:
        end_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    return termination
