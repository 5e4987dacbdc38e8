"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.instruments.loader_work import BatchRow
from labkit.results.log_data import LogData
from labkit.stamps.event_shapes import fits
from labkit.stamps.steps import ASKED

if TYPE_CHECKING:
    import pandas

MOMENTS = ["start", "fetched", "ready"]  # of a batch


class LoaderWorkers:
    """What a run's loader did, worker by worker; falsy where nothing was recorded of it."""

    def __init__(self, run: LogData):
        self.run = run

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker, by its number; -1 is the main process, of a loader without workers.

        It prepared `batches` of `items`, each for `batch_ms`, in one process for each pass unless
        workers persist. Of that time `cpu_share` is the CPU time of all threads. `idle_share` is of
        the time from the first batch to the last. `library_threads` compute beside its own.
        """
        import pandas  # it takes a third of a second

        if self.batches.empty:
            return pandas.DataFrame()
        workers: Any = self.batches.groupby("worker")
        processes: Any = self.batches.groupby(["worker", "process"])
        passes: Any = self.batches.groupby(["worker", "process", "of_pass"])
        made = (processes.done.max() + 1).groupby("worker").sum()  # of a long run some have no row
        mean = workers[["items", "batch_ms", "cpu_ms"]].mean()
        open_ms = 1e3 * (passes.ready.max() - passes.start.min()).groupby("worker").sum()
        return pandas.DataFrame(
            {
                "batches": made,
                "items": (made * mean["items"]).round().astype(int),
                "batch_ms": mean.batch_ms,
                "cpu_share": mean.cpu_ms / mean.batch_ms,
                "idle_share": (1 - made * mean.batch_ms / open_ms).clip(lower=0),
                "library_threads": workers.threads.max(),
            }
        )

    @cached_property
    def batches(self) -> pandas.DataFrame:
        """The batches whose rows were kept, a row each in the order of their start.

        That are all of the first 2,000, then fewer and fewer. Beside the fields of `BatchRow` it
        has the `worker` and its `process`, with the `threads` that this saw of itself then. Moments
        are s on the run's clock; it took `batch_ms`.
        """
        import pandas

        width = len(BatchRow._fields)  # older records have more
        rows = [
            (event["worker"], event["pid"], event.get("threads") or 0, *row[:width])
            for event in self.run.all("items")
            if event.get("batches") and fits(event, "worker_items")
            for row in event["batches"]
        ]
        names = ["worker", "process", "threads", *BatchRow._fields]
        table = pandas.DataFrame(rows, columns=names).sort_values("start", ignore_index=True)
        table["batch_ms"] = ((table.ready - table.start) / 1e6).clip(lower=1e-6)
        table["cpu_ms"] = table.cpu_ns / 1e6
        zero_ns = next(iter(self.run.host_ns[:, ASKED]), 0)
        table[MOMENTS] = (table[MOMENTS] - zero_ns) / 1e9  # between two passes as well
        return table

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        return self.rows.to_string(float_format="%.2f")
