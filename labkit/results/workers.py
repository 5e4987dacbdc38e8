"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

import heapq
import html
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.instruments.loader_work import BatchRow
from labkit.results.run_log import RunLog
from labkit.stamps.event_shapes import fits
from labkit.stamps.record import Event
from labkit.stamps.steps import HOST

if TYPE_CHECKING:
    import pandas

MOMENTS = ["start", "fetched", "ready"]  # of a batch
NAMED = 5  # of the slowest items
SHOWN = ["batches", "p50_ms", "p99_ms", "cpu_share", "idle_share", "slowest"]
MAIN = -1  # in place of a worker's number: the main process, of a loader without workers


@dataclass(frozen=True)
class SlowItem:
    """An item that took long to fetch."""

    index: int | str  # in the dataset; of a stream, how many of the process's items came before
    ms: float
    batch: int

    def __str__(self) -> str:
        return f"{self.index} ({self.ms:.0f} ms)"


@dataclass(frozen=True)
class Hang:
    """A stretch to the end of the record in which nothing moved."""

    worker: int | None  # that held the loop up; None: its own process
    index: int | str | None  # of the item
    seconds: float  # how long it lasted, as far as is known


class LoaderWorkers:
    """What a run's loader did, worker by worker; falsy where nothing was recorded of it."""

    def __init__(self, run: RunLog):
        self.run = run
        self.events = [
            event
            for event in run.packed("items")
            if event.get("batches") is not None and fits(event, "worker_items")
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows.reset_index().itertuples(index=False))

    def __getitem__(self, place: int) -> Any:
        return list(self)[place]

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker, by its number; -1 is the main process, of a loader without workers.

        It prepared `batches` of `items`, in all for `busy_ms`, the median batch for `p50_ms`, in
        one process for each pass unless workers persist. Of that time `cpu_share` is the CPU time
        of all threads, and for `in_line_share` there was no core; `idle_share` is of the time from
        the first batch to the last. `item_ms` is the mean time of an item, without that in line,
        `item_cpu_ms` its CPU time with collating. `library_threads` compute beside its own.
        `last_progress_s` is when the last batch was ready, on the run's clock.
        """
        import pandas  # it takes a third of a second

        if self.batches.empty:
            return pandas.DataFrame()
        last = {(event["worker"], event["pid"]): event for event in self.events}
        sums = pandas.DataFrame(map(_totals_of, last.values()))
        processes: Any = sums.groupby("worker")
        totals = processes.sum(numeric_only=True)
        busy_ns = totals.busy_ns.clip(lower=1)
        batches: Any = self.batches.groupby("worker")
        spans: Any = self.batches.groupby(["worker", "process", "of_pass"])
        open_s = (spans.ready.max() - spans.start.min()).groupby("worker").sum().clip(lower=1e-9)
        rows = pandas.DataFrame(
            {
                "batches": totals.batches,
                "items": totals["items"],
                "p50_ms": batches.made_ms.quantile(0.5),
                "p99_ms": batches.made_ms.quantile(0.99),
                "busy_ms": busy_ns / 1e6,
                "cpu_share": totals.cpu_ns / busy_ns,
                "in_line_share": totals.line_ns / busy_ns,
                "idle_share": (1 - busy_ns / 1e9 / open_s).clip(lower=0),
                "item_ms": batches.fetched_s.sum() * 1e3 / batches["items"].sum(),
                "item_cpu_ms": totals.cpu_ns / 1e6 / totals["items"].clip(lower=1),
                "slowest": processes.slowest.agg(lambda items: _slowest(sum(items, []))),
                "library_threads": processes.threads.max(),
                "last_progress_s": batches.ready.max(),
            }
        )
        return rows.loc[np.unique(self.batches.worker)]

    @cached_property
    def batches(self) -> pandas.DataFrame:
        """The batches whose rows were kept, a row each in the order of their start.

        That are all of the first 2,000, then fewer and fewer. Beside the fields of `BatchRow` it
        has the `worker` and its `process`. Moments are s on the run's clock; `made_ms` is the time
        that it took, `fetched_s` a part of that without the time in line for a core.
        """
        import pandas

        rows = [
            (event["worker"], event["pid"], *row)
            for event in self.events
            for row in event["batches"]
        ]
        table = pandas.DataFrame(rows, columns=["worker", "process", *BatchRow._fields])
        table = table.sort_values("start", kind="stable", ignore_index=True)
        zero_ns = self.run.host_ns[0, 0] if self.run.steps else 0
        table[MOMENTS] = (table[MOMENTS] - zero_ns) / 1e9  # between two passes as well
        table["made_ms"] = (table.ready - table.start) * 1e3
        table["fetched_s"] = (table.fetched - table.start - table.line_ns / 1e9).clip(lower=0)
        return table

    @cached_property
    def cpu_share(self) -> float | None:
        """CPU time over time, while batches were prepared, of all workers; None without any."""
        return float(np.average(self.rows.cpu_share, weights=self.rows.busy_ms)) if self else None

    @cached_property
    def idle_share(self) -> float | None:
        """Mean share of their time in which the workers prepared nothing; None without any."""
        return float(self.rows.idle_share.mean()) if self else None

    @cached_property
    def slowest(self) -> list[SlowItem]:
        """The slowest items of all workers, the slowest first."""
        return _slowest(item for worker in self for item in worker.slowest)

    @cached_property
    def grew_gib(self) -> float | None:
        """What the workers gained of memory of their own, all of them together; None: not known.

        Of the processes that had a worker's number one after the other the most counts.
        """
        held_kib: dict[tuple[int, int], list[int]] = {}
        for event in self.events:
            memory = event.get("memory")
            own_kib = memory[0] if isinstance(memory, list) and memory else memory  # older: a pair
            if isinstance(own_kib, int):
                held_kib.setdefault((event["worker"], event["pid"]), []).append(own_kib)
        most: dict[int, int] = {}
        for (worker, _), held in held_kib.items():
            most[worker] = max(most.get(worker, 0), held[-1] - held[0])
        return sum(most.values()) / 2**20 if held_kib else None

    @cached_property
    def hang(self) -> Hang | None:
        """The hang that the run ended in; None where it went on."""
        seen = self.run.event("hang")
        if seen is None:
            return None
        seen_ns = seen["t_ns"]
        worker = seen.get("worker")
        moved_ns = self.run.host_ns[:, HOST.index("done" if worker is None else "ready")]
        if self.run.event("done") or (moved_ns > seen_ns).any():
            return None
        ended_ns = (self.run.event("end") or seen).get("t_ns", seen_ns)
        seconds = seen["seconds"] + max(ended_ns - seen_ns, 0) / 1e9
        return Hang(worker, seen.get("index"), seconds)

    def to_dict(self) -> list[dict[str, object]]:
        """Return the workers as JSON types."""
        workers: Any = self.rows.reset_index().to_dict("records") if self else []
        return [each | {"slowest": [*map(asdict, each["slowest"])]} for each in workers]

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        return self.rows[SHOWN].to_string(float_format="%.2f")

    def _repr_html_(self) -> str:
        return self.rows.to_html() if self else html.escape(repr(self))


def _slowest(items: Iterable[SlowItem]) -> list[SlowItem]:
    return heapq.nlargest(NAMED, items, key=lambda item: item.ms)


def _totals_of(event: Event) -> dict[str, Any]:
    """Return what an event of a process says of all that it did until then."""
    slowest = [SlowItem(item, ns / 1e6, batch) for ns, item, batch in event["slowest"]]
    more = {"worker": event["worker"], "threads": event.get("threads") or 0, "slowest": slowest}
    return event["totals"] | more
