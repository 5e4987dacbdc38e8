"""What an event of a log has to look like, so that readers can rely on it.

A key whose type has None may be missing, too. Whatever else stands in an event may be anything but
a number that is not finite or too large.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypedDict

from labkit.bench.loader_rows import BatchRow
from labkit.watching.growth import Grown

MAX_RANKS = 64  # of one machine
MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count
BATCH_NUMBERS = len(BatchRow._fields) - 1  # before the slowest item's index


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < MOST


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST


def is_number(value: object) -> bool:
    """Return whether it is a number that is finite, and not too large."""
    return _is_whole(value) or (type(value) is float and math.isfinite(value))


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and is_number(value) and value >= 0


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_RANKS


def _is_place(value: object) -> bool:
    """Return whether it is a sampled place, see `bench.places.Place`."""
    match value:
        case [str(), str(), str(), int(), str(), str(), *around]:
            return 1 <= len(around) <= 2 and all(map(_is_where, around))
    return False


def _is_where(value: object) -> bool:
    match value:
        case None | [str(), int(), str()]:
            return True
    return False


def _is_batch(value: object) -> bool:
    """Return whether it is a `BatchRow`."""
    match value:
        case [*numbers, int() | str()]:
            return len(numbers) == BATCH_NUMBERS and all(map(_is_count, numbers))
    return False


# Types of JSON, each with what a value of it has to be
Whole = Annotated[int, _is_whole]
Count = Annotated[int, _is_count]
Number = Annotated[float, is_number]
Duration = Annotated[float, _is_duration]
Rank = Annotated[int, _is_rank]
Place = Annotated[list, _is_place]
Batch = Annotated[list, _is_batch]


class AnyEvent(TypedDict):
    """What every event has: its name, and the rank of a distributed run that wrote it."""

    event: str
    of_rank: Rank | None


class Totals(TypedDict):
    """What a process of the loader has done so far."""

    batches: Count
    items: Count
    busy_ns: Count
    cpu_ns: Count
    line_ns: Count
    bytes: Count
    disk: Count


class Process(TypedDict):
    """A process beside the run."""

    name: str
    pid: Count
    cores: Number | None


class Spec(AnyEvent):
    """The first event of a record: whose and when it is, and what was asked for."""

    version: Whole
    run: str
    utc: str | None
    experiment: str | None
    measure: str | None
    pipeline: dict
    watched: dict | None
    points: list[dict] | None
    ranks: Rank | None
    no_sync: bool | None
    starve: dict[str, dict] | None
    place: dict[str, Count] | None


class Machine(AnyEvent):
    """The machine and its device."""

    device: str
    kind: str
    name: str
    cpu_name: str | None
    os: str | None
    uuid: str | None
    compute_capability: str | None
    driver: str | None
    pcie: str | None
    unused_gpu: str | None
    cores_limit: str | None
    compile_lacks: str | None
    memory_gib: Number | None
    cpu_cores: Number | None
    host_cores: Number | None
    ram_gib: Number | None
    shm_gib: Number | None
    threads: Number | None
    sm_count: Number | None
    versions: dict


class Job(AnyEvent):
    """The settings that ran, with every automatic value filled in."""

    pipeline: dict
    not_applied: dict
    weights_dtype: str | None
    batch_dtype: str | None
    batch_on_gpu: bool | None
    may_fuse: bool | None
    unit: Literal["samples", "batches"] | None


class Stage(AnyEvent):
    """What a run is busy with before it measures."""

    name: str
    done: Count | None
    total: Count | None


class Begin(AnyEvent):
    """The measurement begins."""

    warmup: Count


class Epoch(AnyEvent):
    """A pass over a watched loader begins."""

    step: Count
    n: Count | None
    began: Count | None


class Pass(AnyEvent):
    """A pass over a watched loader has ended; or several have, which took `spent` ns in all."""

    n: Count
    began: Count
    ended: Count
    trains: bool | None
    gathered: list[tuple[Count, Count]] | None
    spent: Count | None
    passes: Count | None


class Sums(AnyEvent):
    """What all steps of a watched loop add up to, where the log has only the first."""

    steps: Count
    samples: Count
    wall: Count
    busy: Count
    wait: Count


class Remade(AnyEvent):
    """A watched script makes its loader anew for each pass, and its `dataset` too."""

    dataset: bool


class Saved(AnyEvent):
    """A watched script has written a checkpoint."""

    began: Count
    ended: Count
    spent: Count | None


class Hang(AnyEvent):
    """A loop waits for a batch that does not come."""

    seconds: Duration
    pid: Count
    t_ns: Count
    worker: Count | None
    text: str
    line: str | None


class Padding(AnyEvent):
    """The share of the batches that is padding."""

    share: Number


class Headroom(AnyEvent):
    """How much faster the loop could be, by `lk.headroom`."""

    factor: Number | None
    low: Number | None
    high: Number | None


class Step(AnyEvent):
    """A step: its stamps `t`, ns, and how many samples it took."""

    i: Count
    n: Count
    cpu: Count | None
    bytes: Count | None
    t: tuple[Whole, Whole, Whole, Whole]
    copy: tuple[Whole, Whole] | None
    busy: tuple[Whole, Whole] | None
    comm: tuple[Count, Count] | None
    loss: Number | None


class Items(AnyEvent):
    """What the items cost to prepare, as a process of the loader writes it."""

    worker: Whole
    rows: list


class Suspended(AnyEvent):
    """The machine slept."""

    seconds: Duration


class Lines(AnyEvent):
    """Sampled stacks: process, places as they are first met, and a row a sample."""

    pid: Count
    places: dict[str, Place]
    rows: list[tuple[Whole, Whole, Whole]]


class Handoff(AnyEvent):
    """What it costs a worker to hand a batch over."""

    bytes: Whole


class WorkerItems(Items):
    """An `items` event that also has its batches one by one."""

    pid: Count
    batches: list[Batch]
    totals: Totals
    slowest: list[tuple[Count, int | str, Count]]


class Telemetry(AnyEvent):
    """The instruments' readings at a moment; all but these are plain numbers."""

    t_ns: Whole
    gpu: list[tuple[Number, Number]] | None
    gpm: dict[str, Number | None] | None


class OtherProcesses(AnyEvent):
    """Processes beside the run: the busiest of the machine, or those on the same GPU."""

    processes: list[Process]


class SpareCard(AnyEvent):
    """A GPU that a run on the CPU leaves alone."""

    name: str


class Measurement(AnyEvent):
    """A row of a record made before `lk.measure` measured functions."""

    of: str
    case: dict
    seconds: list


class Row(AnyEvent):
    """A row of `lk.measure`."""

    values: dict
    seconds: list | None
    error: str | None


class Skipped(AnyEvent):
    """A row without numbers, of a record made before `lk.measure` measured functions."""

    what: str
    why: str


class Reason(AnyEvent):
    """Why something is not measured, or not as usual: stacks, the profiled steps, a device."""

    why: str


class Work(AnyEvent):
    """What a step computes and moves."""

    flops: Count
    bytes: Count
    held_bytes: Count
    parameters: Count
    samples: Count
    cache_bytes: Count | None
    precision: str
    roof: dict[str, Number] | None


class Memory(AnyEvent):
    """The most memory that was held."""

    peak_bytes: Count | None


class Compiled(AnyEvent):
    """How long torch.compile took."""

    seconds: Number | None


class Xray(AnyEvent):
    """The profiled steps."""

    steps: Whole


class RanksEnded(AnyEvent):
    """The exit codes of the ranks that failed."""

    codes: dict


class Error(AnyEvent):
    """Why a run failed."""

    kind: str
    message: str
    traceback: str | None
    workers: dict | None
    files: list | None
    failed_rank: Count | None


class End(AnyEvent):
    """The run is over, and nothing of it is left."""

    stop: str | None
    why: str | None
    code: Whole | None


class Growth(AnyEvent):
    """What grows from step to step in a watched loop."""

    found: list[Grown]


EVENTS = {  # by their names
    "spec": Spec,
    "machine": Machine,
    "job": Job,
    "stage": Stage,
    "begin": Begin,
    "epoch": Epoch,
    "pass": Pass,
    "sums": Sums,
    "remade": Remade,
    "saved": Saved,
    "hang": Hang,
    "growth": Growth,
    "padding": Padding,
    "headroom": Headroom,
    "step": Step,
    "items": Items,
    "suspended": Suspended,
    "lines": Lines,
    "no_lines": Reason,
    "handoff": Handoff,
    "telemetry": Telemetry,
    "beside": OtherProcesses,
    "on_the_card": OtherProcesses,
    "spare_card": SpareCard,
    "measurement": Measurement,
    "row": Row,
    "skipped": Skipped,
    "work": Work,
    "memory": Memory,
    "clock": Reason,
    "compiled": Compiled,
    "xray": Xray,
    "no_xray": Reason,
    "ranks_ended": RanksEnded,
    "error": Error,
    "end": End,
}
