"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.bench.loader_work import MOST_ROWS
from labkit.results import supply

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.results.run import Run

# Columns of a batch's row in an `items` event; behind them is its slowest item's index
NUMBER, BATCH, PASS, START, FETCHED, READY, CPU, ITEMS, SLOWEST, IN_LINE = range(10)
ROW_LENGTHS = (IN_LINE + 1, IN_LINE + 2)  # of a row; older ones do not tell the time in line
STEP_READY, STEP_DONE = 1, 3  # columns of a run's `host_ns`
TOTALS = ("batches", "items", "busy_ns", "cpu_ns", "bytes", "disk")
MAIN = -1  # in place of a worker's number: the main process, of a loader without workers


@dataclass(frozen=True)
class SlowItem:
    """An item that took long to fetch."""

    index: int | str  # in the dataset; of a stream, how many of the process's items came before
    ms: float
    batch: int


@dataclass(frozen=True)
class Worker:
    """One worker of a loader, over the whole run; times in ms."""

    worker: int  # its number; -1 is the main process, of a loader without workers
    processes: int  # that had this number: one for each pass, unless workers persist
    batches: int
    items: int
    p50_ms: float  # of preparing a batch
    p95_ms: float
    p99_ms: float
    fetch_ms: float  # mean time of a batch until its items are there
    collate_ms: float  # and of putting them together
    cpu_share: float  # CPU time of the process, all threads, over the time that it prepared
    in_line_share: float  # of the time that it prepared, in which it had no core; 0: not known
    idle_share: float  # of the time from its first batch to its last, in which it prepared none
    bytes_read: int  # by system calls
    from_disk: int  # and of these from storage, not from the page cache
    item_ms: float  # mean time of an item, without that in line for a core
    item_cpu_ms: float  # mean CPU time of an item, collating included
    slowest: list[SlowItem]
    slowest_ratio: float  # of the slowest item's time over the mean time of an item
    last_progress_s: float  # on the run's clock: when its last batch was ready


@dataclass(frozen=True)
class Batches:
    """The batches whose rows were kept, in the order of their start: an entry a batch.

    Times are in s on the run's clock. `taken` is when the loop had the batch, NaN where unknown.
    """

    worker: np.ndarray  # (batches,) int
    number: np.ndarray  # of the pass
    start: np.ndarray
    fetched: np.ndarray
    ready: np.ndarray
    asked: np.ndarray  # when the loop began to wait for it
    taken: np.ndarray
    cpu_s: np.ndarray
    in_line_s: np.ndarray  # for which the process's thread had no core
    of_process: np.ndarray  # how many batches its process had prepared before
    items: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> Batches:
        """Return the batches where the mask `keep` is true."""
        return Batches(**{name: column[keep] for name, column in vars(self).items()})


class LoaderWorkers:
    """What a run's loader did, worker by worker; falsy where nothing was recorded of it."""

    def __init__(self, run: Run):
        self.run = run
        self._events = [event for event in run.item_events if _is_sound(event)]

    def __bool__(self) -> bool:
        return bool(self._events)

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def __getitem__(self, place: int) -> Worker:
        return self.workers[place]

    @cached_property
    def workers(self) -> list[Worker]:
        """The workers by their number."""
        numbers = sorted({event["worker"] for event in self._events})
        return [self._worker(number) for number in numbers]

    def _worker(self, number: int) -> Worker:
        events = [event for event in self._events if event["worker"] == number]
        last = {event["pid"]: event for event in events}  # its totals are those of the process
        totals = {name: sum(event["totals"][name] for event in last.values()) for name in TOTALS}
        in_line_ns = sum(event["totals"].get("line_ns", 0) for event in last.values())
        rows = np.array([row for event in events for row in _rows_of(event)], dtype=float)
        took_ms = (rows[:, READY] - rows[:, START]) / 1e6
        p50, p95, p99 = np.percentile(took_ms, [50, 95, 99])
        open_ns = sum(_open_ns(events, pid) for pid in last)
        items = max(1, totals["items"])
        slowest = [
            SlowItem(index, ns / 1e6, batch)
            for event in last.values()
            for ns, index, batch in event["slowest"]
        ]
        slowest = sorted(slowest, key=lambda item: -item.ms)[:5]
        fetched_ns = np.maximum(rows[:, FETCHED] - rows[:, START] - rows[:, IN_LINE], 0)
        item_ms = float(fetched_ns.sum() / 1e6 / rows[:, ITEMS].sum())
        return Worker(
            worker=number,
            processes=len(last),
            batches=totals["batches"],
            items=totals["items"],
            p50_ms=float(p50),
            p95_ms=float(p95),
            p99_ms=float(p99),
            fetch_ms=float((rows[:, FETCHED] - rows[:, START]).mean() / 1e6),
            collate_ms=float((rows[:, READY] - rows[:, FETCHED]).mean() / 1e6),
            cpu_share=totals["cpu_ns"] / max(1, totals["busy_ns"]),
            in_line_share=in_line_ns / max(1, totals["busy_ns"]),
            idle_share=max(0.0, 1 - totals["busy_ns"] / max(1, open_ns)),
            bytes_read=totals["bytes"],
            from_disk=totals["disk"],
            item_ms=item_ms,
            item_cpu_ms=totals["cpu_ns"] / 1e6 / items,
            slowest=slowest,
            slowest_ratio=slowest[0].ms / item_ms if slowest and item_ms > 0 else 1.0,
            last_progress_s=float(self.run.seconds(rows[:, READY].max())),
        )

    @cached_property
    def batches(self) -> Batches:
        """The batches whose rows were kept: all of the first 2,000, then fewer and fewer."""
        found = [(event["worker"], *row) for event in self._events for row in _rows_of(event)]
        table = np.array(found or np.zeros((0, 2 + IN_LINE)), dtype=float)
        table = table[table[:, 1 + START].argsort(kind="stable")]
        worker = table[:, 0].astype(int)
        rows = table[:, 1:]
        asked, taken = self._taken(rows)
        start, fetched, ready = (self._seconds(rows[:, n]) for n in (START, FETCHED, READY))
        return Batches(
            worker=worker,
            number=rows[:, BATCH].astype(int),
            start=start,
            fetched=fetched,
            ready=ready,
            asked=asked,
            taken=taken,
            cpu_s=rows[:, CPU] / 1e9,
            in_line_s=rows[:, IN_LINE] / 1e9,
            of_process=rows[:, NUMBER].astype(int),
            items=rows[:, ITEMS].astype(int),
        )

    def _seconds(self, at_ns: np.ndarray) -> np.ndarray:
        """Return moments on the run's clock; those between two passes count as well."""
        if not self.run.steps:
            return np.full(len(at_ns), np.nan)
        return (at_ns - self.run.host_ns[0, 0]) / 1e9

    def _taken(self, rows: np.ndarray) -> np.ndarray:
        """Return when the loop asked for each batch and when it had it (2, batches), s."""
        host = self.run.host_ns
        numbers = [event.get("n") for event in self.run.epochs]
        code = self.run.loop_code if self.run.watched else None
        unordered = ((code or {}).get("arguments") or {}).get("in_order") == "False"
        if unordered or len(set(numbers)) < len(numbers):  # replayed steps lie between
            return np.full((2, len(rows)), np.nan)
        first_steps = np.array([event["step"] for event in self.run.epochs] or [0])
        began = np.array([event.get("began", 0) for event in self.run.epochs] or [0], dtype=float)
        epoch = np.searchsorted(began, rows[:, START], side="right") - 1
        step = first_steps[np.maximum(epoch, 0)] + rows[:, BATCH].astype(int)
        ends = np.append(first_steps, len(host))[np.maximum(epoch, 0) + 1]
        known = (step < ends) & (step < len(host))
        times = np.full((2, len(rows)), np.nan)
        times[:, known] = self._seconds(host[step[known], :2].T.ravel()).reshape(2, -1)
        return times

    @cached_property
    def cpu_share(self) -> float | None:
        """CPU time over time, while batches were prepared, of all workers; None without any."""
        busy_ms = sum(each.batches * (each.fetch_ms + each.collate_ms) for each in self.workers)
        used_ms = sum(each.items * each.item_cpu_ms for each in self.workers)
        return used_ms / busy_ms if busy_ms else None

    @cached_property
    def idle_share(self) -> float | None:
        """Mean share of their time in which the workers prepared nothing; None without any."""
        shares = [each.idle_share for each in self.workers]
        return sum(shares) / len(shares) if shares else None

    @cached_property
    def uneven_share(self) -> float | None:
        """Share of the work of the busiest worker beyond an even share, 0 to 1 - 1/workers."""
        work = [each.batches * (each.fetch_ms + each.collate_ms) for each in self.workers]
        return max(work) / sum(work) - 1 / len(work) if work and sum(work) else None

    @cached_property
    def handover_ms(self) -> float | None:
        """Median time from a batch's being ready to the loop's having it, while the loop waits.

        None where the loop waited for no batch of a worker, or there are no workers.
        """
        batches = self.batches
        waited_for = (batches.worker >= 0) & (batches.asked < batches.ready)
        took = (batches.taken - batches.ready)[waited_for & (batches.taken >= batches.ready)]
        return float(np.median(took) * 1e3) if len(took) else None

    @cached_property
    def late_share(self) -> float | None:
        """Share of the loop's waiting in which a later batch was ready; None where unknown."""
        return supply.late_share(self.batches)

    @cached_property
    def wait_over_alone(self) -> float | None:
        """How long an item waits with all workers, over its wait with one; None where unknown."""
        room = MOST_ROWS // max(1, len(self.workers))  # of a process, before rows are left out
        batches = self.batches
        return supply.wait_over_alone(batches.only(batches.of_process < room))

    @cached_property
    def memory_growth(self) -> supply.MemoryGrowth | None:
        """What the workers hold more than at their first batch; None where unknown."""
        return supply.memory_growth(self._events)

    @cached_property
    def epoch_start_ms(self) -> list[float]:
        """The wait for the first batch of each pass, with the start of the workers."""
        host = self.run.host_ns
        first = [event["step"] for event in self.run.epochs if event["step"] < len(host)]
        return [float((host[step, 1] - host[step, 0]) / 1e6) for step in dict.fromkeys(first)]

    @cached_property
    def epoch_item_ms(self) -> list[float]:
        """The mean time of an item in each pass: the first is slow where the page cache is cold."""
        times: dict[int, list[float]] = {}
        began = np.array([event.get("began", 0) for event in self.run.epochs] or [0], dtype=float)
        for event in self._events:
            for row in event["batches"]:
                epoch = int(np.searchsorted(began, row[START], side="right")) - 1
                times.setdefault(max(0, epoch), []).append(
                    (row[FETCHED] - row[START]) / 1e6 / max(1, row[ITEMS])
                )
        return [float(np.mean(times[epoch])) for epoch in sorted(times)]

    @cached_property
    def slowest(self) -> list[SlowItem]:
        """The slowest items of all workers, the slowest first."""
        items = [item for worker in self.workers for item in worker.slowest]
        return sorted(items, key=lambda item: -item.ms)[:5]

    @cached_property
    def hang(self) -> dict[str, Any] | None:
        """The last hang that was seen; None without one.

        `worker`, `index`, `line` and `text` are those of the moment when it was seen, `over` is
        whether the loop went on afterwards, `seconds` how long it lasted, as far as is known.
        """
        hang = self.run.event("hang")
        if hang is None:
            return None
        moved_ns = self._moved_again_ns(hang)
        end_ns = (self.run.event("end") or hang)["t_ns"]
        last_ns = max(hang["t_ns"], end_ns) if moved_ns is None else moved_ns
        seconds = hang["seconds"] + (last_ns - hang["t_ns"]) / 1e9
        return {**hang, "over": moved_ns is not None, "seconds": seconds}

    def _moved_again_ns(self, hang: dict[str, Any]) -> int | None:
        """Return when the loop went on after a hang was seen; None where it never did."""
        seen_ns = hang["t_ns"]
        stamp = STEP_DONE if hang.get("worker") is None else STEP_READY
        stamps = self.run.host_ns[:, stamp]
        moments = stamps[stamps > seen_ns][:1].astype(int).tolist()
        exhausted_ns = (self.run.event("done") or hang)["t_ns"]
        if exhausted_ns > seen_ns:
            moments.append(exhausted_ns)
        return min(moments, default=None)

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker."""
        import pandas

        rows = []
        for each in self.workers:
            values = asdict(each)
            values["slowest"] = ", ".join(f"{item.index}: {item.ms:.1f}" for item in each.slowest)
            rows.append(values)
        names = list(Worker.__dataclass_fields__)
        return pandas.DataFrame(rows, columns=names).set_index("worker")

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the workers as JSON types."""
        return [asdict(each) for each in self.workers]

    def plot(self, start_s: float | None = None, seconds: float = 3.0) -> Figure:
        """Draw what each worker did, under the loop, for a few seconds from `start_s` on."""
        from labkit.view.workers_figure import draw

        return draw(self, start_s=start_s, seconds=seconds)

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        lines = []
        for each in self.workers:
            name = "main process" if each.worker == MAIN else f"worker {each.worker}"
            slow = {item.index: item.ms for item in reversed(each.slowest)}
            slowest = sorted(slow, key=lambda index: -slow[index])[:2]
            named = ", ".join(f"{index} ({slow[index]:.0f} ms)" for index in slowest)
            idle = "" if each.worker == MAIN else f", idle {each.idle_share:.0%}"
            lines.append(
                f"{name}: {each.batches} batches of {each.p50_ms:.1f} ms (p99 {each.p99_ms:.1f}), "
                f"CPU {each.cpu_share:.0%} while it prepares{idle}, "
                f"read {each.bytes_read / 2**20:.1f} MiB; slowest items: {named}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.rows.to_html() if self else html.escape(repr(self))


def _open_ns(events: list[dict[str, Any]], pid: int) -> float:
    """Return how long a process was there for batches, pass by pass: first start to last end."""
    spans: dict[int, list[float]] = {}
    for event in events:
        if event["pid"] == pid:
            for row in event["batches"]:
                spans.setdefault(row[PASS], []).extend((row[START], row[READY]))
    return sum(max(times) - min(times) for times in spans.values())


def _rows_of(event: dict[str, Any]) -> list[list[float]]:
    """Return the rows of an event's batches, without the index of the slowest item."""
    return [[*row[:-1], 0][: IN_LINE + 1] for row in event["batches"]]


def _is_sound(event: dict[str, Any]) -> bool:
    """Return whether an event has rows of batches, of which everything is as it was written."""
    rows = event.get("batches")
    totals = event.get("totals")
    slowest = event.get("slowest")
    if not (rows and isinstance(rows, list) and isinstance(totals, dict)):
        return False
    if not isinstance(slowest, list):
        return False
    counts = [totals.get(name) for name in TOTALS]
    shaped = all(isinstance(row, list) and len(row) in ROW_LENGTHS for row in rows)
    named = all(isinstance(each, list) and len(each) == 3 for each in slowest)
    if not (shaped and named and type(event.get("pid")) is int):
        return False
    numbers = [number for row in rows for number in row[:-1]]
    numbers += [number for each in slowest for number in (each[0], each[2])]
    names = [row[-1] for row in rows] + [each[1] for each in slowest]
    return all(type(n) is int and 0 <= n < 2**62 for n in [*numbers, *counts]) and all(
        isinstance(name, (int, str)) for name in names
    )
