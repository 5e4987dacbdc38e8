"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

import heapq
import html
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from labkit.bench.loader_rows import BatchRow
from labkit.results.event_shapes import fits
from labkit.results.loader_records import Batches, Hang, LostCache, SlowItem, Worker
from labkit.results.steps import HOST

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.results.run import Run

NUMBERS = ("worker", "process", *BatchRow._fields[:-1])  # of a batch
NAMED = 5  # of the slowest items
MAIN = -1  # in place of a worker's number: the main process, of a loader without workers


class LoaderWorkers:
    """What a run's loader did, worker by worker; falsy where nothing was recorded of it."""

    def __init__(self, run: Run):
        self.run = run
        self.events = [
            event
            for event in run.item_events
            if event.get("batches") is not None and fits(event, "worker_items")
        ]

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def __getitem__(self, place: int) -> Worker:
        return self.workers[place]

    @cached_property
    def workers(self) -> list[Worker]:
        """The workers by their number."""
        numbers = sorted({event["worker"] for event in self.events if event["batches"]})
        return [self._worker(number) for number in numbers]

    def _worker(self, number: int) -> Worker:
        # The totals of the last event are those of the process
        last = {event["pid"]: event for event in self.events if event["worker"] == number}
        totals: Counter[str] = Counter()
        slow_items = []
        for event in last.values():
            totals.update(event["totals"])
            slow_items += [SlowItem(item, ns / 1e6, batch) for ns, item, batch in event["slowest"]]
        slowest = _slowest(slow_items)
        busy_ns = max(1, totals["busy_ns"])
        own = self.batches.only(self.batches.worker == number)
        p50, p95, p99 = np.percentile((own.ready - own.start) * 1e3, [50, 95, 99])
        fetched_s = np.maximum(own.fetched - own.start - own.in_line_s, 0)
        item_ms = float(fetched_s.sum() * 1e3 / own.items.sum())
        return Worker(
            worker=number,
            processes=len(last),
            batches=totals["batches"],
            items=totals["items"],
            p50_ms=float(p50),
            p95_ms=float(p95),
            p99_ms=float(p99),
            busy_ms=busy_ns / 1e6,
            cpu_share=totals["cpu_ns"] / busy_ns,
            in_line_share=totals["line_ns"] / busy_ns,
            idle_share=max(0.0, 1 - busy_ns / 1e9 / max(_open_s(own), 1e-9)),
            bytes_read=totals["bytes"],
            from_disk=totals["disk"],
            item_ms=item_ms,
            item_cpu_ms=totals["cpu_ns"] / 1e6 / max(1, totals["items"]),
            slowest=slowest,
            library_threads=max(event.get("threads") or 0 for event in last.values()),
            last_progress_s=float(own.ready.max()),
        )

    @cached_property
    def batches(self) -> Batches:
        """The batches whose rows were kept: all of the first 2,000, then fewer and fewer."""
        rows = [
            (event["worker"], event["pid"], *numbers)
            for event in self.events
            for *numbers, _slowest_item in event["batches"]
        ]
        table = np.array(rows, dtype=float).reshape(-1, len(NUMBERS)).T
        table = table[:, table[NUMBERS.index("start")].argsort(kind="stable")]
        column = dict(zip(NUMBERS, table, strict=True))
        began = [event.get("began") or 0 for event in self.run.passes_begun] or [0]
        epoch = np.searchsorted(began, column["start"], side="right") - 1
        epoch = np.maximum(epoch, 0)
        asked, taken = self._seconds(self._taken(epoch, column["batch"].astype(int)))
        return Batches(
            worker=column["worker"].astype(int),
            process=column["process"],
            process_pass=column["of_pass"],
            of_process=column["done"].astype(int),
            epoch=epoch,
            start=self._seconds(column["start"]),
            fetched=self._seconds(column["fetched"]),
            ready=self._seconds(column["ready"]),
            asked=asked,
            taken=taken,
            cpu_s=column["cpu_ns"] / 1e9,
            in_line_s=column["line_ns"] / 1e9,
            items=column["items"].astype(int),
            slow_s=np.maximum(column["slow_ns"] - column["line_ns"], 0) / 1e9,
        )

    def _seconds(self, at_ns: np.ndarray) -> np.ndarray:
        """Return moments on the run's clock; those between two passes count as well."""
        zero_ns = self.run.host_ns[0, 0] if self.run.steps else 0
        return (at_ns - zero_ns) / 1e9

    def _taken(self, epoch: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return when the loop asked for each batch and when it had it (2, batches), ns."""
        host_ns = self.run.host_ns
        times_ns = np.full((2, len(epoch)), np.nan)
        passes = [event.get("n") for event in self.run.passes_begun]
        arguments = (self.run.loop_code or {}).get("arguments") or {}
        unordered = arguments.get("in_order") == "False"
        if unordered or len(set(passes)) < len(passes):  # replayed steps lie between
            return times_ns
        firsts = np.array(self.run.first_steps or [0])
        step = firsts[epoch] + number
        behind = np.append(firsts[1:], len(host_ns))[epoch]
        known = step < np.minimum(behind, len(host_ns))
        times_ns[:, known] = host_ns[step[known], :2].T
        return times_ns

    @cached_property
    def cpu_share(self) -> float | None:
        """CPU time over time, while batches were prepared, of all workers; None without any."""
        busy_ms = [each.busy_ms for each in self]
        if not busy_ms:
            return None
        return float(np.average([each.cpu_share for each in self], weights=busy_ms))

    @cached_property
    def idle_share(self) -> float | None:
        """Mean share of their time in which the workers prepared nothing; None without any."""
        return fmean(each.idle_share for each in self) if self else None

    @cached_property
    def slowest(self) -> list[SlowItem]:
        """The slowest items of all workers, the slowest first."""
        return _slowest(item for worker in self for item in worker.slowest)

    @cached_property
    def lost_cache(self) -> LostCache | None:
        """What workers kept that ended with their pass; None where they go on, or kept nothing."""
        last = {event["pid"]: event for event in self.events if event["worker"] != MAIN}
        kept = [event for event in last.values() if event.get("cached")]
        if not kept or len(last) <= len(self):
            return None
        name = Counter(event["cached"][0] for event in kept).most_common(1)[0][0]
        entries = sum(event["cached"][1] for event in kept if event["cached"][0] == name)
        items = sum(event["totals"]["items"] for event in last.values())
        return LostCache(name, entries / len(last), items / len(last))

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

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker."""
        import pandas

        columns = [field.name for field in fields(Worker)]
        rows = pandas.DataFrame(self.to_dict(), columns=columns).set_index("worker")
        rows["slowest"] = [
            ", ".join(f"{item.index}: {item.ms:.1f}" for item in each.slowest) for each in self
        ]
        return rows

    def to_dict(self) -> list[dict[str, object]]:
        """Return the workers as JSON types."""
        return [asdict(each) for each in self]

    def plot(self, start_s: float | None = None, seconds: float = 3.0) -> Figure:
        """Draw what each worker did, under the loop, for a few seconds from `start_s` on."""
        from labkit.view.workers_figure import draw_workers

        return draw_workers(self, start_s, seconds)

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        return "\n".join(map(_line, self))

    def _repr_html_(self) -> str:
        return self.rows.to_html() if self else html.escape(repr(self))


def _slowest(items: Iterable[SlowItem]) -> list[SlowItem]:
    return heapq.nlargest(NAMED, items, key=lambda item: item.ms)


def _line(worker: Worker) -> str:
    """Return what a worker did, in a line."""
    is_main = worker.worker == MAIN
    name = "main process" if is_main else f"worker {worker.worker}"
    idle = "" if is_main else f", idle {worker.idle_share:.0%}"
    slow_ms: dict[int | str, float] = {}  # of an item that was slow more than once, the worst
    for item in worker.slowest:
        slow_ms.setdefault(item.index, item.ms)
    slowest = ", ".join(f"{index} ({ms:.0f} ms)" for index, ms in [*slow_ms.items()][:2])
    return (
        f"{name}: {worker.batches} batches of {worker.p50_ms:.1f} ms (p99 {worker.p99_ms:.1f}), "
        f"CPU {worker.cpu_share:.0%} while it prepares{idle}, "
        f"read {worker.bytes_read / 2**20:.1f} MiB; slowest items: {slowest}"
    )


def _open_s(own: Batches) -> float:
    """Return how long a worker was there for batches, pass by pass: first start to last end."""
    passes = np.unique([own.process, own.process_pass], axis=1, return_inverse=True)[1].ravel()
    start = np.full(passes.max() + 1, np.inf)
    end = np.full(len(start), -np.inf)
    np.minimum.at(start, passes, own.start)
    np.maximum.at(end, passes, own.ready)
    return float((end - start).sum())
