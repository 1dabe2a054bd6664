"""Find what did not happen: a nightly that did not start or end in time, a sensor that only fails, days without a result.

Pure: what is known in, troubles out. A trouble that is missing from the answer is as it was before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from accel_ci.config.notify_settings import Silence
from accel_ci.notify.troubles import Trouble
from accel_ci.quality.grid import LINE
from accel_ci.quality.levels import Job

_NOT_STARTED, _NO_LEDGER, _OUTAGE = "silence-nightly-start", "silence-nightly-ledger", "silence-outage"


@dataclass(frozen=True)
class Nightly:
    """A nightly: its revision, the builds that have no ledger, and when the last ledger came, if none is missing."""

    key: str
    created_at: datetime
    missing: tuple[str, ...]
    ended_at: datetime | None = None


def nightly_troubles(
    scheduled: Sequence[datetime],
    nightlies: Sequence[Nightly],
    silence: Silence,
    now: datetime,
    failed: Collection[str] = (),
    link: str | None = None,
) -> list[Trouble]:
    """Return the troubles with the newest nightly that should have started, and with the newest that should have ended.

    Args:
        scheduled: The last times of the schedule, the oldest first.
        nightlies: The nightlies that there are, in any order.
        silence: The limits.
        now: The time.
        failed: The builds whose run failed, which is a trouble already.
        link: The address of the HUD.
    """
    found = []
    started_by, ended_by = timedelta(minutes=silence.start_minutes), timedelta(hours=silence.end_hours)
    if (due := _last(scheduled, now - started_by)) is not None:
        nightly = _of(due, nightlies)
        at = f"{due:%Y-%m-%d %H:%M} UTC"
        words = (
            f"The nightly of {at} had not started {_hours(started_by)} later: see whether the daemon runs."
            if nightly is None
            else f"{nightly.key} has started."
        )
        title = "the nightly did not start"
        found.append(Trouble(_NOT_STARTED, nightly is None, "silence", title, words, at, link=link))
    if (due := _last(scheduled, now - ended_by)) is not None and (nightly := _of(due, nightlies)) is not None:
        missing = [build for build in nightly.missing if build not in failed]
        if missing:
            words = f"{', '.join(missing)}: no ledger {_hours(ended_by)} after the start."
        elif nightly.ended_at is not None:
            words = f"{nightly.key} ended after {_hours(nightly.ended_at - due)}."
        else:
            words = f"{nightly.key} has ended."
        title = "the nightly is late, or has no ledger"
        found.append(Trouble(_NO_LEDGER, bool(missing), "silence", title, words, nightly.key, link=link))
    return found


def outage_troubles(
    jobs: Sequence[Job], missed: datetime | None, silence: Silence, now: datetime, link: str | None = None
) -> list[Trouble]:
    """Return the trouble that no build's tests have run for too long.

    The clock is that of the criterion "longest outage" (`accel_ci.quality.levels`): it begins with the end of the last job
    whose tests ran, and runs once a job was lost since, or a nightly was `missed`.
    """
    line = sorted((job for job in jobs if job.trigger in LINE), key=lambda job: job.at)
    good = [job for job in line if job.outcome not in ("infra", "unfinished")]
    if not good:
        return []
    last = good[-1]
    lost = [job for job in line if job.at > last.at]
    silent = now - (last.at + timedelta(seconds=last.signal_s or 0))
    is_open = bool(lost or missed is not None) and silent > timedelta(hours=silence.outage_hours)
    words = (
        f"No tests have run for {_hours(silent)}, since {last.name}; {len(lost)} builds were lost since."
        if is_open
        else f"The tests of {last.name} have run."
    )
    return [Trouble(_OUTAGE, is_open, "silence", "no build's tests run", words, last.name, link=link)]


def tick_troubles(ticks: Mapping[str, Sequence[bool]], silence: Silence, link: str | None = None) -> list[Trouble]:
    """Return the troubles of sensors and schedules, by the outcomes of their last ticks, the newest first.

    An outcome is True if the tick did not fail. One that fails, but not often enough yet, is as it was before.
    """
    found = []
    for name, outcomes in ticks.items():
        if not outcomes:
            continue
        last = list(outcomes[: silence.failed_ticks])
        if outcomes[0] or (len(last) == silence.failed_ticks and not any(last)):
            words = "A tick did not fail." if outcomes[0] else f"Its last {len(last)} ticks failed; see its page in Dagster."
            found.append(Trouble(f"silence-ticks-{name}", not outcomes[0], "silence", f"{name} fails", words, link=link))
    return found


def _last(scheduled: Sequence[datetime], by: datetime) -> datetime | None:
    return max((at for at in scheduled if at <= by), default=None)


def _of(due: datetime, nightlies: Sequence[Nightly]) -> Nightly | None:
    """The nightly of a time: of that day, by its key, or the first one made after it."""
    after = [each for each in nightlies if each.created_at >= due or each.key == f"nightly-{due:%Y%m%d}"]
    return min(after, key=lambda each: each.created_at, default=None)


def _hours(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
