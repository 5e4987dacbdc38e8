"""What is known of a run: the causes of the diagnosis look at nothing else.

That is numbers, and for a cause's place in the code the sampled lines behind them (`lines`, and
`loop` of a watched one). A share is a part of the wall time, 0 to 1, unless its comment says of
what. Asking for what was not measured raises `NotMeasured`: a cause that does so is not judged, and
the verdict can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Line, Lines, Loop
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.wall_shares import WallShares
from labkit.diagnosis.witnesses import Heat, Witness
from labkit.knobs import Setting
from labkit.results.core_use import CoreUse
from labkit.results.device_peaks import Peak
from labkit.results.workers import Hang

Found = TypeVar("Found")


class NotMeasured(AttributeError):
    """A cause asked for what was not measured; its text is the name of the field."""


class Measures:
    """Facts of a run, as attributes; one that was not measured raises `NotMeasured`."""

    def __init__(self, **facts: Any):
        """Take what was measured; None is not."""
        vars(self).update({name: fact for name, fact in facts.items() if fact is not None})

    if not TYPE_CHECKING:  # which knows the facts that there are

        def __getattr__(self, name: str) -> Any:
            raise NotMeasured(name)

    def known(self, name: str) -> Any:
        """Return a fact, None where it was not measured."""
        return getattr(self, name, None)

    def but(self, **changes: Any) -> Any:
        """Return the same facts but for some."""
        return type(self)(**{**vars(self), **changes})


def asked(rule: Callable[[Any], Found | None], facts: Measures) -> Found | None:
    """Return what a rule finds; None also where it asks for what was not measured."""
    try:
        return rule(facts)
    except NotMeasured:
        return None


class Xray(Measures):
    """The compute of a few steps as the bench's own profiling saw it; times are for one step."""

    window_us: float  # from the first operator to the last
    gap_us: float  # between operators: Python
    tiny_us: float  # in operators of under 10 µs
    tiny_ops: float
    fusible_us: float  # of these, what one fused pass would save
    bf16_speedup: float  # of the same compute, measured

    def share(self, time_us: float) -> float:
        """Return a time as a share of the compute."""
        return min(1.0, time_us / max(self.window_us, 1e-9))


class Kernels(Measures):
    """What a profiler saw run on a GPU. Shares are of kernel time."""

    kernel_us: float  # of the average step
    cuda_graphs: bool = False  # these hide kernels from some profilers
    tensor_core_share: float = 0.0
    eligible_share: float  # in operators that could use Tensor Cores


class CardEvidence(Measures):
    """What a GPU's events and counters tell, and the processes on it."""

    others_share: float  # other processes' kernels ran on it
    heat: Heat
    witness: Witness  # the surest of whether it works while it is busy
    ahead_share: float = 0.0  # it works on what had been issued in full

    @property
    def certain_share(self) -> float:
        """The share of time in which it worked, whatever the host did."""
        witness = self.known("witness")
        return 1.0 if witness and witness.works else self.ahead_share


class TraceFacts(Measures):
    """What a profiler's trace tells beside its times."""

    has_workers: bool  # whether its loader has workers
    outside_where: tuple[str, ...] = ()  # functions in which the host was busy outside of PyTorch
    late_rank: int  # of several, the one that the others wait for
    late_said: str = ""


class Batch(Measures):
    """What is known of a watched loop's batches."""

    dtype: str  # of the largest array in the first one
    bytes: float  # of its large arrays, in an ordinary step
    on_gpu: bool = False  # whether the loader makes them on a GPU, as no worker could


class WorkerEvidence(Measures):
    """What the loader's workers did while the loop ran."""

    workers: int  # how many there are
    cpu_share: float  # CPU time over the time that one prepares items; above 1 with more threads
    idle_share: float  # time in which the average worker had no batch to make
    library_threads: int = 0  # that compute in each beside its own; 0: none, or not counted
    hang: Hang  # of a worker that had work, and finished no item


@dataclass(frozen=True)
class Epochs:
    """How the waiting is spread over the epochs, as shares of the time."""

    starts: float = 0.0  # waits for the first batches of later ones
    first: float = 0.0  # by which the first epoch waited longer than as many steps of later ones


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
    padding_share: float  # of the tokens computed
    wait_us: float  # of the average step
    compute_us: float  # of the average step
    launches_only: bool = False  # a step's parts are the host's: the device's times are not known

    # The machine, and who else uses it
    use: CoreUse = CoreUse()
    card: CardEvidence = CardEvidence()

    # How much of what the device could do the model's arithmetic needs
    mfu: float
    peak: Peak  # of the device

    # What looked inside
    xray: Xray
    kernels: Kernels
    workers: WorkerEvidence
    epochs: Epochs = Epochs()
    lines: Lines
    whole: WallShares  # of a script's time, in its loops and outside of them
    trace: TraceFacts  # where a profiler's trace is all there is

    # A watched loop
    loop: Loop
    host_wait_share: float = 0.0  # its host waits for a batch, whatever the device does
    body: Mapping[str, float] = {}  # of its body: no training
    growth: tuple[
        dict[str, Any], ...
    ] = ()  # of a watched loop, what keeps the graphs of ever more steps
    weights_dtype: str  # of most of what it trains, as "float32"
    spare_card: str  # the name of a GPU here that its model on the CPU leaves alone
    batch: Batch = Batch()

    # The settings, and what the simulation makes of them
    knobs: Mapping[str, Setting] = {}
    code: LoopCode = LoopCode()  # how a user's script writes its loop
    trains: bool = True  # rather than only infers
    formats: tuple[str, ...]  # of 16 bits, on Tensor Cores; None: card unknown
    compiles: bool = True  # whether torch.compile can act on the device
    advised: int  # workers that a simulation recommends
    deeper_queue: int  # a prefetch_factor that helps against stalls
    headroom: float  # the gain of a perfect loader, by replay within a pass

    @property
    def num_workers(self) -> int | None:
        """Of the loader; None where it has none to set, or is not known."""
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
        return self.known("loop") is None and self.knobs.get("xray") is not None

    @property
    def stolen_by_others(self) -> float:
        """The share of its time in which this program had work, and other programs its cores."""
        is_shared = self.use.others_share > limits.FOREIGN_LOAD
        return (self.use.taken or 0.0) if is_shared else 0.0

    @property
    def crowded_by(self) -> float:
        """The larger of the shares of the cores and of this program's time that others had."""
        return max(self.use.others_share, self.stolen_by_others)

    @property
    def gaps_may_hide(self) -> bool:
        """Whether a GPU that looks busy may wait for launches, and nothing can tell."""
        if self.kind != "gpu" or self.known("kernels") or self.launches_only:
            return False
        witness = self.card.known("witness")
        return witness is None or witness.works is None

    @property
    def gap_share(self) -> float:
        """Of the compute on a GPU: no kernel runs."""
        kernels, compute_us = self.known("kernels"), self.known("compute_us")
        return max(0.0, 1 - kernels.kernel_us / compute_us) if kernels and compute_us else 0.0

    @property
    def stalls(self) -> bool:
        """Whether the loop waits seldom and long."""
        return self.stall_share > limits.STALLS and self.wait_share > limits.STALLS_FROM

    @property
    def loading_lines(self) -> tuple[Line, ...]:
        """The costliest lines that make batches, where enough was sampled: workers' go first."""
        lines = self.known("lines")
        if lines is None:
            return ()
        return (lines.rows(lines.making("worker")) or lines.rows(lines.making("waiting")))[:3]
