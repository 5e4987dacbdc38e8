"""What the processes of a run's loader did: a row a worker, and the batches that they prepared."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.record import Event

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.results.run import Run

# Columns of a batch's row in an `items` event; behind them is its slowest item's index
NUMBER, BATCH, PASS, START, FETCHED, READY, CPU, ITEMS, SLOWEST, IN_LINE = range(10)
ROW_LENGTHS = {IN_LINE + 1, IN_LINE + 2}  # of a row; older ones do not tell the time in line
STEP_READY, STEP_DONE = 1, 3  # columns of a run's `host_ns`
TOTALS = {"batches", "items", "busy_ns", "cpu_ns", "bytes", "disk"}
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
    busy_ms: float  # in which it prepared batches, in all
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
    process: np.ndarray  # the process's id
    process_pass: np.ndarray  # the pass over the dataset, counted by the process
    of_process: np.ndarray  # how many batches its process had prepared before
    epoch: np.ndarray  # the pass of the loop
    start: np.ndarray
    fetched: np.ndarray
    ready: np.ndarray
    asked: np.ndarray  # when the loop began to wait for it
    taken: np.ndarray
    cpu_s: np.ndarray
    in_line_s: np.ndarray  # for which the process's thread had no core
    items: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> Batches:
        """Return the batches where the mask `keep` is true."""
        return Batches(**{name: column[keep] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Hang:
    """The last time for which nothing moved, as it was when it was seen."""

    worker: int | None  # that held the loop up; None: its own process
    index: int | str | None  # of the item
    seconds: float  # how long it lasted, as far as is known
    over: bool  # whether the loop went on afterwards


class LoaderWorkers:
    """What a run's loader did, worker by worker; falsy where nothing was recorded of it."""

    def __init__(self, run: Run):
        self.run = run
        self.events = [event for event in run.item_events if _is_sound(event)]

    def __bool__(self) -> bool:
        return bool(self.events)

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def __getitem__(self, place: int) -> Worker:
        return self.workers[place]

    @cached_property
    def workers(self) -> list[Worker]:
        """The workers by their number."""
        numbers = sorted({event["worker"] for event in self.events})
        return [self._worker(number) for number in numbers]

    def _worker(self, number: int) -> Worker:
        # The totals of the last event are those of the process
        last = {event["pid"]: event for event in self.events if event["worker"] == number}
        totals: Counter[str] = Counter()
        slowest = []
        for event in last.values():
            totals.update(event["totals"])
            slowest += [SlowItem(index, ns / 1e6, batch) for ns, index, batch in event["slowest"]]
        slowest.sort(key=lambda item: item.ms, reverse=True)
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
            slowest=slowest[:5],
            slowest_ratio=slowest[0].ms / item_ms if slowest and item_ms > 0 else 1.0,
            last_progress_s=float(own.ready.max()),
        )

    @cached_property
    def batches(self) -> Batches:
        """The batches whose rows were kept: all of the first 2,000, then fewer and fewer."""
        found = [
            (event["worker"], event["pid"], *[*row[:-1], 0][: IN_LINE + 1])
            for event in self.events
            for row in event["batches"]
        ]
        table = np.array(found or np.zeros((0, 3 + IN_LINE)), dtype=float)
        rows = table[table[:, 2 + START].argsort(kind="stable")]
        worker, process, *columns = rows.T
        began = [event.get("began") or 0 for event in self.run.epochs] or [0]
        epoch = np.searchsorted(began, columns[START], side="right") - 1
        epoch = np.maximum(epoch, 0)
        asked, taken = self._seconds(self._taken(epoch, columns[BATCH].astype(int)))
        start, fetched, ready = self._seconds(np.array(columns[START : READY + 1]))
        return Batches(
            worker=worker.astype(int),
            process=process,
            process_pass=columns[PASS],
            of_process=columns[NUMBER].astype(int),
            epoch=epoch,
            start=start,
            fetched=fetched,
            ready=ready,
            asked=asked,
            taken=taken,
            cpu_s=columns[CPU] / 1e9,
            in_line_s=columns[IN_LINE] / 1e9,
            items=columns[ITEMS].astype(int),
        )

    def _seconds(self, at_ns: np.ndarray) -> np.ndarray:
        """Return moments on the run's clock; those between two passes count as well."""
        zero_ns = self.run.host_ns[0, 0] if self.run.steps else 0
        return (at_ns - zero_ns) / 1e9

    def _taken(self, epoch: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return when the loop asked for each batch and when it had it (2, batches), ns."""
        host_ns = self.run.host_ns
        times_ns = np.full((2, len(epoch)), np.nan)
        passes = [event.get("n") for event in self.run.epochs]
        code = self.run.loop_code if self.run.watched else None
        unordered = ((code or {}).get("arguments") or {}).get("in_order") == "False"
        if unordered or len(set(passes)) < len(passes):  # replayed steps lie between
            return times_ns
        firsts = np.array([event["step"] for event in self.run.epochs] or [0])
        step = firsts[epoch] + number
        known = step < np.append(firsts[1:], len(host_ns))[epoch]
        known &= step < len(host_ns)
        times_ns[:, known] = host_ns[step[known], :2].T
        return times_ns

    @cached_property
    def cpu_share(self) -> float | None:
        """CPU time over time, while batches were prepared, of all workers; None without any."""
        busy_ms = [each.busy_ms for each in self.workers]
        if not busy_ms:
            return None
        return float(np.average([each.cpu_share for each in self.workers], weights=busy_ms))

    @cached_property
    def idle_share(self) -> float | None:
        """Mean share of their time in which the workers prepared nothing; None without any."""
        shares = [each.idle_share for each in self.workers]
        return sum(shares) / len(shares) if shares else None

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
    def epoch_start_ms(self) -> list[float]:
        """The wait for the first batch of each pass, with the start of the workers."""
        host_ns = self.run.host_ns
        firsts = {event["step"] for event in self.run.epochs if event["step"] < len(host_ns)}
        return [float((host_ns[step, 1] - host_ns[step, 0]) / 1e6) for step in sorted(firsts)]

    @cached_property
    def epoch_item_ms(self) -> list[float]:
        """The mean time of an item in each pass: the first is slow where the page cache is cold."""
        batches = self.batches
        took_ms = (batches.fetched - batches.start) * 1e3 / np.maximum(batches.items, 1)
        return [float(took_ms[batches.epoch == n].mean()) for n in np.unique(batches.epoch)]

    @cached_property
    def slowest(self) -> list[SlowItem]:
        """The slowest items of all workers, the slowest first."""
        items = [item for worker in self.workers for item in worker.slowest]
        return sorted(items, key=lambda item: -item.ms)[:5]

    @cached_property
    def hang(self) -> Hang | None:
        """The last hang that was seen; None without one."""
        seen = self.run.event("hang")
        if seen is None:
            return None
        seen_ns = seen["t_ns"]
        worker = seen.get("worker")
        stamps = self.run.host_ns[:, STEP_DONE if worker is None else STEP_READY]
        moved_ns = [int(at_ns) for at_ns in stamps[stamps > seen_ns][:1]]
        moved_ns.append((self.run.event("done") or seen)["t_ns"])
        moved_ns = [at_ns for at_ns in moved_ns if at_ns > seen_ns]
        end_ns = (self.run.event("end") or seen)["t_ns"]
        last_ns = min(moved_ns, default=max(seen_ns, end_ns))
        seconds = seen["seconds"] + (last_ns - seen_ns) / 1e9
        return Hang(worker, seen.get("index"), seconds, bool(moved_ns))

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """A row a worker."""
        import pandas

        columns = [field.name for field in fields(Worker)]
        rows = pandas.DataFrame(self.to_dict(), columns=columns).set_index("worker")
        rows["slowest"] = [
            ", ".join(f"{item.index}: {item.ms:.1f}" for item in each.slowest)
            for each in self.workers
        ]
        return rows

    def to_dict(self) -> list[dict[str, object]]:
        """Return the workers as JSON types."""
        return [asdict(each) for each in self.workers]

    def plot(self, start_s: float | None = None, seconds: float = 3.0) -> Figure:
        """Draw what each worker did, under the loop, for a few seconds from `start_s` on."""
        from labkit.view.workers_figure import draw

        return draw(self, start_s=start_s, seconds=seconds)

    def __repr__(self) -> str:
        if not self:
            return "nothing was recorded of the loader's workers"
        return "\n".join(map(_line, self.workers))

    def _repr_html_(self) -> str:
        return self.rows.to_html() if self else html.escape(repr(self))


def _line(worker: Worker) -> str:
    """Return what a worker did, in a line."""
    is_main = worker.worker == MAIN
    slow_ms: dict[int | str, float] = {}  # of an item that was slow more than once, the worst
    for item in worker.slowest:
        slow_ms.setdefault(item.index, item.ms)
    slowest = ", ".join(f"{index} ({ms:.0f} ms)" for index, ms in [*slow_ms.items()][:2])
    return (
        f"{'main process' if is_main else f'worker {worker.worker}'}: "
        f"{worker.batches} batches of {worker.p50_ms:.1f} ms (p99 {worker.p99_ms:.1f}), "
        f"CPU {worker.cpu_share:.0%} while it prepares"
        f"{'' if is_main else f', idle {worker.idle_share:.0%}'}, "
        f"read {worker.bytes_read / 2**20:.1f} MiB; slowest items: {slowest}"
    )


def _open_s(own: Batches) -> float:
    """Return how long a worker was there for batches, pass by pass: first start to last end."""
    spans: dict[tuple[float, float], tuple[float, float]] = {}
    columns = (own.process, own.process_pass, own.start, own.ready)
    for process, process_pass, start, ready in zip(*map(np.ndarray.tolist, columns), strict=True):
        begun, over = spans.get((process, process_pass), (start, ready))
        spans[process, process_pass] = min(begun, start), max(over, ready)
    return sum(over - begun for begun, over in spans.values())


def _is_sound(event: Event) -> bool:
    """Return whether an event has rows of batches, of which everything is as it was written."""
    try:
        rows = event["batches"]
        slowest = event["slowest"]
        totals = event["totals"]
        numbers = [event["pid"], *totals.values()]
        numbers += [number for row in rows for number in row[:-1]]
        numbers += [number for ns, _, batch in slowest for number in (ns, batch)]
        names = [row[-1] for row in rows] + [index for _, index, _ in slowest]
        lengths = {len(row) for row in rows}
        is_whole = bool(rows) and lengths <= ROW_LENGTHS and totals.keys() >= TOTALS
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return False
    is_counted = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    return is_whole and is_counted and all(isinstance(name, (int, str)) for name in names)
