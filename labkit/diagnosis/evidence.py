"""What is known of a run: the causes of the diagnosis look at nothing else.

That is numbers, and for a cause's place in the code the sampled lines behind them (`lines`, and
`loop` of a watched one). A share is a part of the wall time, 0 to 1, unless its comment says of
what. A field that was not measured is None here, and raises `NotMeasured` where a cause asks for
it (`Asked`): the cause is then not judged, and the verdict can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar, cast

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import MAKING, Line, Lines
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.wall_shares import WallShares
from labkit.diagnosis.watched_loop import Loop
from labkit.diagnosis.witnesses import Heat, Witness, deciding
from labkit.instruments.growth import Grown
from labkit.knobs import Setting
from labkit.results.core_use import CoreUse
from labkit.results.device_peaks import Peak
from labkit.results.workers import Hang

Found = TypeVar("Found")
UNKNOWN: Any = None  # of a field that may not have been measured


class NotMeasured(LookupError):
    """A cause asked for what was not measured; its text is the name of the field."""


class Asked:
    """Evidence as a cause asks for it: what was not measured raises `NotMeasured`.

    `known(name)` gives None for that, where a cause can do without it.
    """

    def __init__(self, record: object):
        self._record = record

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._record, name)
        if value is None:
            raise NotMeasured(name)
        return Asked(value) if isinstance(value, Measures) else value

    def known(self, name: str) -> Any:
        """Return a field, None where it was not measured."""
        return getattr(self._record, name)


class Measures:
    """Facts of a run, of which some may not have been measured."""

    def known(self, name: str) -> Any:
        """Return a field, None where it was not measured; `Asked` has the same."""
        return getattr(self, name)


@dataclass(frozen=True)
class Xray(Measures):
    """The compute of a few steps as the bench's own profiling saw it; times are for one step."""

    steps: float
    window_us: float  # from the first operator to the last
    gap_us: float  # between operators: Python
    tiny_us: float  # in operators of under 10 µs
    tiny_ops: float
    elementwise_us: float
    fusible_us: float  # of these, what one fused pass would save
    bf16_speedup: float | Any = UNKNOWN  # of the same compute, measured

    def share(self, time_us: float) -> float:
        """Return a time as a share of the compute."""
        return min(1.0, time_us / max(self.window_us, 1e-9))


@dataclass(frozen=True)
class Kernels(Measures):
    """What a profiler saw run on a GPU. Shares are of kernel time."""

    kernel_us: float  # of the average step
    cuda_graphs: bool = False  # these hide kernels from some profilers
    tensor_core_share: float = 0.0
    eligible_share: float | Any = UNKNOWN  # in operators that could use Tensor Cores
    moving_share: float | Any = UNKNOWN  # in elementwise kernels, which only move data


@dataclass(frozen=True)
class CardEvidence(Measures):
    """What a GPU's events and counters tell, and the processes on it."""

    launches: float | Any = UNKNOWN  # share of time the threads that launch kernels had no core
    others_share: float | Any = UNKNOWN  # other processes' kernels ran on it
    heat: Heat | Any = UNKNOWN
    witnesses: tuple[Witness, ...] = ()  # what can tell whether it works while it is busy
    certain_share: float = 0.0  # it certainly worked, whatever the host did
    ahead_share: float = 0.0  # it works on what had been issued in full


@dataclass(frozen=True)
class TraceFacts(Measures):
    """What a profiler's trace tells beside its times."""

    has_workers: bool | Any = UNKNOWN  # whether its loader has workers
    outside_where: tuple[str, ...] = ()  # functions in which the host was busy outside of PyTorch
    late_rank: int | Any = UNKNOWN  # of several, the one that the others wait for
    late_said: str = ""


@dataclass(frozen=True)
class Batch(Measures):
    """What is known of a watched loop's batches."""

    dtype: str | Any = UNKNOWN  # of the largest array in the first one
    on_gpu: bool = False  # whether the loader makes them on a GPU, as no worker could
    bytes: float | Any = UNKNOWN  # of its large arrays, in an ordinary step
    sizes: int = 1  # different ones that were seen, as of texts padded to the longest of a batch


@dataclass(frozen=True)
class LoopGrowth(Measures):
    """What grew while a loop was watched."""

    variables: tuple[Grown, ...] = ()
    # GiB that its processes held, early and late, where this rose to the end
    early_gib: float | Any = UNKNOWN
    late_gib: float | Any = UNKNOWN


@dataclass(frozen=True)
class WorkerEvidence(Measures):
    """What the loader's workers did while the loop ran."""

    cpu_shares: tuple[float, ...]  # of each worker: CPU time over the time it prepares items
    in_line_share: float | Any = UNKNOWN  # of that time: without a core, on average of the workers
    idle_share: float | Any = UNKNOWN  # time in which the average worker had no batch to make
    library_threads: int = 0  # that compute in each beside its own; 0: none, or not counted
    busiest_over_mean: float | Any = UNKNOWN  # time at work of the busiest worker over the mean
    slowest: str = ""  # the slowest items that they prepared, in words
    grew_gib: float | Any = UNKNOWN  # memory of their own since their first batch, all together
    hang: Hang | Any = UNKNOWN  # of a worker that had work, and finished no item
    item_wait_ms: float | Any = UNKNOWN

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.cpu_shares)

    @property
    def cpu_share(self) -> float:
        """The mean over the workers; above 1 where several threads of one compute."""
        return fmean(self.cpu_shares)

    @property
    def computing_share(self) -> float:
        """The part of its time in which a worker computes, or would if it had a core."""
        return self.cpu_share + (self.in_line_share or 0.0)


@dataclass(frozen=True)
class Epochs:
    """How the waiting is spread over the epochs, as shares of the time."""

    starts: float = 0.0  # waits for the first batches of later ones
    starts_ms: float = 0.0  # for each of them, on average
    first: float = 0.0  # by which the first epoch waited longer than as many steps of later ones


@dataclass(frozen=True)
class Evidence(Measures):
    """One run, or one trace, in numbers."""

    kind: str  # "cpu" or "gpu": what the device is
    source: str = ""  # where the shares come from, in words
    inside: str = "x-ray"  # what looked into the compute, in words

    # A step, by what was going on: these add up to 1, of a trace nearly so
    wait_share: float = 0.0  # the loop waits for its next batch
    copy_share: float = 0.0  # the device waits for a copy
    compute_share: float = 0.0  # the device computes
    launch_share: float = 0.0  # the device waits for what the host issues
    other_share: float = 0.0  # the host does something else between two steps
    communication_share: float = 0.0  # only collectives run (a trace)
    outside_share: float = 0.0  # the host is busy outside of PyTorch (a trace)

    stall_share: float = 0.0  # of the waiting: in the worst tenth of the steps
    padding_share: float | Any = UNKNOWN  # of the tokens computed
    wait_us: float | Any = UNKNOWN  # of the average step
    compute_us: float | Any = UNKNOWN  # of the average step
    launches_only: bool = False  # a step's parts are the host's: the device's times are not known

    # The machine, and who else uses it
    use: CoreUse = CoreUse()
    threads: int | Any = UNKNOWN  # that torch computes an operator with, on a CPU
    stolen_by_workers: float | Any = UNKNOWN  # our workers had the core that the model needed
    stolen_by_others: float = 0.0  # other programs had it
    card: CardEvidence = CardEvidence()

    # How much of what the device could do the model's arithmetic needs
    mfu: float | Any = UNKNOWN
    peak: Peak | Any = UNKNOWN  # of the device
    flop_per_byte: float | Any = UNKNOWN  # of a step whose bytes no cache holds

    # What looked inside
    xray: Xray | Any = UNKNOWN
    kernels: Kernels | Any = UNKNOWN
    workers: WorkerEvidence | Any = UNKNOWN
    epochs: Epochs = Epochs()
    lines: Lines | Any = UNKNOWN
    whole: WallShares | Any = UNKNOWN  # of a script's time, in its loops and outside of them
    trace: TraceFacts | Any = UNKNOWN  # where a profiler's trace is all there is

    # A watched loop
    loop: Loop | Any = UNKNOWN
    host_wait_share: float = 0.0  # its host waits for a batch, whatever the device does
    body: Mapping[str, float] = field(default_factory=dict)  # of its body: no training
    growth: LoopGrowth = LoopGrowth()  # of what a watched loop keeps
    switches: tuple[str, ...] = ()  # process-wide ones that are on, as `SWITCHES` names them
    weights_dtype: str | Any = UNKNOWN  # of most of what it trains, as "float32"
    spare_card: str | Any = UNKNOWN  # the name of a GPU here that its model on the CPU leaves alone
    batch: Batch = Batch()

    # The settings, and what the simulation makes of them
    knobs: Mapping[str, Setting] = field(default_factory=dict)
    code: LoopCode = LoopCode()  # how a user's script writes its loop
    trains: bool = True  # rather than only infers
    formats: tuple[str, ...] | Any = UNKNOWN  # of 16 bits, on Tensor Cores; None: card unknown
    compiles: bool = True  # whether torch.compile can act on the device
    advised: int | Any = UNKNOWN  # workers that a simulation recommends
    deeper_queue: int | Any = UNKNOWN  # a prefetch_factor that helps against stalls
    headroom: float | Any = UNKNOWN  # the gain of a perfect loader, by replay within a pass

    @property
    def num_workers(self) -> int | None:
        """Of the loader; None where it has none to set."""
        count = self.knobs.get("num_workers")
        return None if count is None else int(count)

    @property
    def worker_count(self) -> int:
        """The same, 0 where it has none to set."""
        return self.num_workers or 0

    @property
    def has_workers(self) -> bool:
        """Whether it is known to have any."""
        return self.worker_count > 0

    @property
    def of_bench(self) -> bool:
        """Whether it is of a pipeline of the bench, and of no loop or trace of somebody's own."""
        return self.loop is None and self.knobs.get("xray") is not None

    @property
    def crowded_by(self) -> float:
        """The larger of the shares of the cores and of the model's core that others had."""
        return max(self.use.others_share, self.stolen_by_others)

    @property
    def gaps_may_hide(self) -> bool:
        """Whether a GPU that looks busy may wait for launches, and nothing can tell."""
        if self.kind != "gpu" or self.kernels is not None or self.launches_only:
            return False
        return deciding(self.card.witnesses) is None

    @property
    def gap_share(self) -> float:
        """Of the compute on a GPU: no kernel runs."""
        if self.kernels is None or not self.compute_us:
            return 0.0
        return max(0.0, 1 - self.kernels.kernel_us / self.compute_us)

    @property
    def stalls(self) -> bool:
        """Whether the loop waits seldom and long."""
        return self.stall_share > limits.STALLS and self.wait_share > limits.STALLS_FROM

    @property
    def loading_lines(self) -> tuple[Line, ...]:
        """The costliest lines that make batches, where enough was sampled: workers' go first."""
        if self.lines is None:
            return ()
        found = (self.lines.rows(self.lines.making(phase)) for phase in reversed(MAKING))
        return next(filter(None, found), ())[:3]


def asking(evidence: Evidence) -> Evidence:
    """Return the evidence as a cause asks for it."""
    return evidence if isinstance(evidence, Asked) else cast(Evidence, Asked(evidence))


def asked(rule: Callable[[Evidence], Found | None], evidence: Evidence) -> Found | None:
    """Return what a rule finds; None also where it asks for what was not measured."""
    try:
        return rule(asking(evidence))
    except NotMeasured:
        return None
