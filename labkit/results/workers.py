"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.instruments.loader_work import BatchRow
from labkit.results.run_log import RunLog
from labkit.stamps.event_shapes import fits
from labkit.stamps.steps import HOST

if TYPE_CHECKING:
    import pandas

MOMENTS = ["start", "fetched", "ready"]  # of a batch
SEEN = ["worker", "pid", "threads", "memory"]  # of an event
SUMMED = ["items", "busy_ms", "cpu_ms", "line_ms"]
NAMED = 5  # of the slowest items
MAIN = -1  # in place of a worker's number: the main process, of a loader without workers


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
            for event in run.all("items")
            if event.get("batches") is not None and fits(event, "worker_items")
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows.reset_index().itertuples(index=False))

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker, by its number; -1 is the main process, of a loader without workers.

        It prepared `batches` of `items`, in all for `busy_ms`, the median batch for `p50_ms`, in
        one process for each pass unless workers persist. Of that time `cpu_share` is the CPU time
        of all threads, and for `in_line_share` there was no core; the rest is `item_wait_ms` for
        each item. `idle_share` is of the time from the first batch to the last. `library_threads`
        compute beside its own. Its own memory grew by `grew_gib`, where that is known.
        """
        import pandas  # it takes a third of a second

        if self.batches.empty:
            return pandas.DataFrame()
        processes: Any = self.batches.groupby(["worker", "process"])
        made = processes.done.max() + 1  # of a long run some have no row
        sums = processes[SUMMED].sum().mul(made / processes.size(), axis=0).groupby("worker").sum()
        passes: Any = self.batches.groupby(["worker", "process", "of_pass"])
        open_ms = 1e3 * (passes.ready.max() - passes.start.min()).groupby("worker").sum()
        gained_kib = processes.kib.last() - processes.kib.first()
        waits_ms = sums.busy_ms - sums.cpu_ms - sums.line_ms
        return pandas.DataFrame(
            {
                "batches": made.groupby("worker").sum(),
                "items": sums["items"].round().astype(int),
                "busy_ms": sums.busy_ms,
                "p50_ms": self.batches.groupby("worker").busy_ms.median(),
                "cpu_share": sums.cpu_ms / sums.busy_ms,
                "in_line_share": (sums.line_ms / sums.busy_ms).clip(upper=1),
                "idle_share": (1 - sums.busy_ms / open_ms).clip(lower=0),
                "item_wait_ms": (waits_ms / sums["items"].clip(lower=1)).clip(lower=0),
                "library_threads": processes.threads.last().groupby("worker").max().astype(int),
                "grew_gib": gained_kib.groupby("worker").max() / 2**20,
            }
        ).loc[sums.index]

    @cached_property
    def batches(self) -> pandas.DataFrame:
        """The batches whose rows were kept, a row each in the order of their start.

        That are all of the first 2,000, then fewer and fewer. Beside the fields of `BatchRow` it
        has the `worker` and its `process`, with the `threads` and the memory, `kib`, that this saw
        of itself then. Moments are s on the run's clock; it took `busy_ms`.
        """
        import pandas

        rows = [(*map(event.get, SEEN), *row) for event in self.events for row in event["batches"]]
        table = pandas.DataFrame(
            rows, columns=["worker", "process", "threads", "kib", *BatchRow._fields]
        )
        table = table.sort_values("start", kind="stable", ignore_index=True)
        table["threads"] = table.threads.fillna(0)
        table["kib"] = pandas.to_numeric(table.kib, errors="coerce")
        table["busy_ms"] = ((table.ready - table.start) / 1e6).clip(lower=1e-6)
        table["cpu_ms"] = table.cpu_ns / 1e6
        table["line_ms"] = table.line_ns / 1e6
        zero_ns = self.run.host_ns[0, 0] if self.run.steps else 0
        table[MOMENTS] = (table[MOMENTS] - zero_ns) / 1e9  # between two passes as well
        return table

    @cached_property
    def slowest(self) -> list[str]:
        """The slowest items of all workers, the slowest first; not of a process's first batch."""
        items: Any = self.batches[self.batches.done > 0]
        items = items.assign(ms=items.slow_ns / 1e6 - items.line_ms).nlargest(NAMED, "ms")
        pairs = zip(items.slow_index, items.ms, strict=True)
        return [f"{index} ({max(0.0, ms):.0f} ms)" for index, ms in pairs]

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
        table: Any = self.rows.reset_index().astype(object)
        return table.where(table.notna(), None).to_dict("records") if self else []

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        return self.rows.to_string(float_format="%.2f")
