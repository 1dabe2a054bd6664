"""The load of 24 to 2,048 cards on S3, the API server, etcd and PostgreSQL: `python -m benchmarks.capacity`.

Unit costs are measured on real servers: a round of four workers (pods where `KUBECONFIG`, `ACCEL_CI_CLUSTER_IMAGE`,
`…_RESOURCE` and `…_KUBECTL` name a cluster, else processes), two nightlies with Dagster on PostgreSQL and the data folder in
S3, and the sizes of the objects of a round of 200,000 tests. A model multiplies them. `--simulate 2048` checks the model
against the requests of a round of so many simulated workers. It needs `ACCEL_CI_POSTGRES_URL`, and `ACCEL_CI_S3_ENDPOINT`,
`…_BUCKET`, `…_ACCESS_KEY` and `…_SECRET_KEY`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from accel_ci.model import Limits, WorkerSpec
from accel_ci.rounds.bucket_records import Slot, SlotClaims
from accel_ci.rounds.bucket_round import BucketRound
from accel_ci.rounds.round_bucket import packed
from accel_ci.storage.s3 import environment_keys, s3_client, s3_session
from benchmarks.counted_requests import CLUSTER, Requests
from benchmarks.measured_night import MeasuredNight, measure_nights
from benchmarks.measured_round import MeasuredRound, measure_round, rounds_of
from benchmarks.nights import Night, make_night
from benchmarks.plan_simulation import plan_night
from benchmarks.simulated_round import SimulatedRound, simulate_round

CARDS = (24, 128, 512, 1024, 2048)
TESTS, FILES = 200_000, 900

WRITE_PRICE = 0.005 / 1000
READ_PRICE = 0.0004 / 1000
"""Dollars for a request: PUT, COPY, POST and LIST; GET and all others. S3 Standard, us-east-1, list of November 2026."""

WORKERS = 4
PAGE = 1000
"""The objects in an answer to LIST."""


@dataclass(frozen=True)
class RoundUnits:
    """The requests of a round by what they grow with, as measured."""

    of_round: Requests
    per_worker: dict[str, float]
    per_batch: dict[str, float]


@dataclass(frozen=True)
class Load:
    """The requests of a night's rounds on a number of cards, by sender and method."""

    cards: int
    seconds: float
    requests: Mapping[str, float]

    @property
    def dollars(self) -> float:
        """The price of the requests."""
        return sum(times * price_of(name.rpartition(" ")[2]) for name, times in self.requests.items())

    @property
    def per_second(self) -> float:
        """The requests in a second, on average."""
        return sum(self.requests.values()) / self.seconds


def price_of(method: str) -> float:
    """Return the dollars for a request."""
    return {"DELETE": 0.0, "GET": READ_PRICE, "HEAD": READ_PRICE}.get(method, WRITE_PRICE)


def units_of(measured: MeasuredRound) -> RoundUnits:
    """Split the requests of a measured round, apart from those that grow with time, which are known from the code."""
    once = Requests(
        {key: times for key, times in measured.driver.items() if key[1] not in ("claims", "slots", "workers", "news")}
    )
    once["LIST", "slots"] = measured.driver["LIST", "slots"]
    joins = [key for key in measured.from_workers if key[1] not in ("claims", "news", "the form of events")]
    per_worker = {method: 0.0 for method, _ in joins}
    for method, kind in joins:
        per_worker[method] += measured.from_workers[method, kind] / measured.workers
    per_batch = {
        "driver GET": measured.driver["GET", "claims"] / measured.batches,
        "workers PUT": measured.from_workers["PUT", "claims"] / measured.batches,
        "workers GET": measured.from_workers["GET", "news"] / measured.batches,
    }
    return RoundUnits(once, per_worker, per_batch)


def load_of(units: RoundUnits, cards: int, batches: int, seconds: float) -> Load:
    """Multiply: a pass of the driver, and an upload of each worker, for each interval, which grows with the workers.

    A worker uploads at most once in an interval, and the driver passes over the bucket at most twice (`SlotClaims.every_s`).
    """
    every_s = interval_s(cards)
    passes = 2 * seconds / every_s
    pages = 1 + batches / 2 / PAGE  # on average, since claims come evenly
    asked = {
        "driver GET": passes * cards + batches * units.per_batch["driver GET"] + cards,
        "driver LIST": passes * pages,
        "driver PUT": passes,
        "workers GET": batches * units.per_batch["workers GET"] + cards * units.per_worker["GET"],
        "workers PUT": batches * units.per_batch["workers PUT"] + cards * units.per_worker["PUT"],
        "workers POST": cards * seconds / every_s,
    }
    for (method, _), times in units.of_round.items():
        asked[f"driver {method}"] = asked.get(f"driver {method}", 0.0) + times
    return Load(cards, seconds, asked)


def interval_s(cards: int) -> float:
    """Return the seconds between two uploads of a worker, as the pool sets them."""
    slots = SlotClaims.__new__(SlotClaims)
    slots._slots = {str(number): Slot("", "", 0) for number in range(cards)}
    return slots.every_s


@dataclass(frozen=True)
class Sizes:
    """A night on so many cards, and the bytes of the objects that every worker downloads."""

    cards: int
    batches: int
    makespan_s: float
    objects: Mapping[str, int]


def size_night(night: Night, folder: Path) -> Sizes:
    """Plan a night of 200,000 tests, and write its objects to the bucket to see their sizes.

    The makespan is the bound that no schedule beats: `benchmarks.plan_simulation` ends within 8 % of it.
    """
    plan, cards = plan_night(night), len(night["ready_s"])
    store = rounds_of(os.environ["ACCEL_CI_S3_ENDPOINT"])
    try:
        record = BucketRound(folder, store.of_round("sizes/round-1"))
        record.prepare(1, plan.batches, WorkerSpec("python3", "/sources", {}, "CARD"), Limits(), plan.urgent)
        record.slots.offer([Slot(f"w0-{rank}", str(rank), rank) for rank in range(cards)])
        bucket = store.of_round("sizes/round-1").below(record.plan_digest)
        claimed: dict[str, list[str]] = {}
        for number, batch in enumerate(plan.batches):
            claimed.setdefault(f"w0-{number % cards}", []).append(batch.id)
        sizes = {name: int(item["Size"]) for name, item in bucket.listed("").items()}
    finally:
        store.of_round("sizes").clear()
    return Sizes(cards, len(plan.batches), night["lower_bound_s"], {**sizes, "news": len(packed({"claimed": claimed}))})


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, multiply and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__.partition("\n")[0])
    parser.add_argument("--cards", type=int, nargs="+", default=CARDS)
    parser.add_argument("--nights", type=int, default=2, help="nightlies to run; the last one counts")
    parser.add_argument("--simulate", type=int, metavar="WORKERS", help="also run a round of simulated workers")
    given = parser.parse_args(argv)
    if missing := [name for name in ("ACCEL_CI_POSTGRES_URL", "ACCEL_CI_S3_ENDPOINT") if not os.environ.get(name)]:
        parser.error(f"set {', '.join(missing)}")
    console, pods = Console(soft_wrap=True), bool(os.environ.get("ACCEL_CI_CLUSTER_KUBECTL"))
    with tempfile.TemporaryDirectory(prefix="accel-ci-capacity-") as name:
        folder = Path(name)
        measured = measure_round(folder / "round", WORKERS, 8, 3.0, pods=pods)
        console.print(_round_table(measured), _night_table(_nights(folder, given.nights)))
        units = units_of(measured)
        nights = [make_night(seed=1, cards=cards, tests=TESTS, files=FILES) for cards in given.cards]
        sizes = [size_night(night, folder / f"sizes-{len(night['ready_s'])}") for night in nights]
        console.print(_load_table(units, sizes), _cluster_table(measured, sizes))
        if given.simulate:
            store = rounds_of(os.environ["ACCEL_CI_S3_ENDPOINT"])
            simulated = simulate_round(store, folder / "simulated", given.simulate, 3, 40.0)
            console.print(_simulation_table(units, given.simulate, simulated))
    return 0


def _nights(folder: Path, count: int) -> list[MeasuredNight]:
    """Run the nightlies below a new prefix, which goes afterwards."""
    prefix = f"benchmarks-{uuid.uuid4().hex[:8]}"
    try:
        return measure_nights(folder / "nights", prefix, count)
    finally:
        client = s3_client(s3_session(*environment_keys()), os.environ["ACCEL_CI_S3_ENDPOINT"])
        bucket = os.environ["ACCEL_CI_S3_BUCKET"]
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            if keys := [{"Key": item["Key"]} for item in page.get("Contents", ())]:
                client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})


def _round_table(measured: MeasuredRound) -> Table:
    title = f"a round of {measured.workers} workers and {measured.batches} batches, {measured.seconds:.0f} s"
    table = Table("by", "request", "of", "times", title=title)
    for by, counted in (("driver", measured.driver), ("workers", measured.from_workers), ("driver", measured.cluster)):
        for (method, kind), times in sorted(counted.items(), key=lambda one: one[0][::-1]):
            table.add_row(by, method, kind, f"{times:,}")
    for kind, stored in measured.etcd.items():
        table.add_row("etcd", "holds at most", kind, f"{stored.objects} of {stored.bytes / stored.objects / 1000:.1f} kB")
    return table


def _night_table(nights: Sequence[MeasuredNight]) -> Table:
    last = nights[-1]
    table = Table("", "number", "", title=f"nightly {len(nights)} of one variant adds or asks for")
    for name, one in sorted(last.tables.items(), key=lambda item: -item[1].rows):
        table.add_row(f"rows of {name}", f"{one.rows}", f"{one.bytes / 1000:,.0f} kB")
    table.add_row("rows", f"{last.rows}", f"{last.bytes / 1000:,.0f} kB")
    methods = Requests()
    for (method, _), times in last.requests.items():
        methods[method, ""] += times
    for (method, _), times in sorted(methods.items()):
        table.add_row(f"S3 {method}", f"{times}", f"${times * price_of(method):.5f}")
    return table


def _load_table(units: RoundUnits, sizes: Sequence[Sizes]) -> Table:
    table = Table(
        "cards", "batches", "makespan s", "interval s", "GET", "LIST", "PUT", "POST", "requests/s",
        "$ a night", "each downloads MB",
        title=f"S3, round 1 of a night of {TESTS:,} tests",
    )  # fmt: skip
    for one in sizes:
        load = load_of(units, one.cards, one.batches, one.makespan_s)
        by_method = {
            method: sum(times for name, times in load.requests.items() if name.endswith(f" {method}"))
            for method in ("GET", "LIST", "PUT", "POST")
        }
        downloads = sum(one.objects[name] for name in ("plan", "claim_urls", "invitation"))
        table.add_row(
            f"{one.cards:,}", f"{one.batches:,}", f"{one.makespan_s:,.0f}", f"{interval_s(one.cards):g}",
            *(f"{times:,.0f}" for times in by_method.values()), f"{load.per_second:,.0f}", f"{load.dollars:.2f}",
            f"{downloads / 1e6:.1f} + news {one.objects['news'] / 1e6:.2f}",
        )  # fmt: skip
    return table


def _cluster_table(measured: MeasuredRound, sizes: Sequence[Sizes]) -> Table:
    table = Table(
        "cards",
        "LIST of pods a minute",
        "MB each",
        "other calls",
        "etcd: pods",
        "events",
        "MB",
        title="the cluster, a round",
    )
    if not measured.etcd:
        table.title = "no cluster: ACCEL_CI_CLUSTER_KUBECTL is not set"
        return table
    pod, event = (measured.etcd[kind] for kind in ("Pod", "Event"))
    others = sum(times for key, times in measured.cluster.items() if key != ("LIST", f"{CLUSTER}pods"))
    for one in sizes:
        megabytes = pod.bytes / pod.objects * one.cards / 1e6
        events = math.ceil(event.objects / measured.workers * one.cards)
        of_events = event.bytes / event.objects * events / 1e6
        table.add_row(
            f"{one.cards:,}", f"{60 / interval_s(one.cards):.1f}", f"{megabytes:.1f}", f"{others}", f"{one.cards:,}",
            f"{events:,}", f"{megabytes + of_events:.1f}",
        )  # fmt: skip
    return table


def _simulation_table(units: RoundUnits, workers: int, simulated: SimulatedRound) -> Table:
    title = f"{workers:,} simulated workers, {simulated.attempts:,} batches, {simulated.seconds:.0f} s, "
    table = Table(
        "request", "counted", "the model", title=f"{title}a pass each {simulated.pass_s:.1f} s, {simulated.lost} lost"
    )
    model = load_of(units, workers, simulated.attempts, simulated.seconds)
    for by, counted in (("driver", simulated.driver), ("workers", simulated.workers)):
        for method in ("GET", "LIST", "PUT", "POST"):
            times = sum(count for (of, _), count in counted.items() if of == method)
            if times or f"{by} {method}" in model.requests:
                table.add_row(f"{by} {method}", f"{times:,}", f"{model.requests.get(f'{by} {method}', 0):,.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
