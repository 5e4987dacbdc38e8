"""What is known of a run: the rules of the diagnosis look at nothing else.

A share is a part of the wall time, 0 to 1, unless its comment says of what. Asking for what was not
measured and has no default raises `NotMeasured`: the rule is then not judged, and the verdict can
say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.loader_code import LoopCode
from labkit.knobs import Setting
from labkit.results.core_use import CoreUse
from labkit.results.device_peaks import Peak
from labkit.stamps.record import Event

if TYPE_CHECKING:
    import numpy as np

    from labkit.diagnosis.hot_lines import Lines
    from labkit.diagnosis.wall_shares import WallShares
    from labkit.traces.breakdown import Breakdown, RankTraces


class NotMeasured(Exception):
    """A rule asked for what was not measured; its text is the name of the fact, or names."""


class Witness(NamedTuple):
    """One instrument's word on the time that the events call busy."""

    text: str  # what it measured, and against which threshold
    idle: float | None  # share of that time in which the device waited; None: it cannot tell


class Evidence:
    """One run, or one trace, in numbers: facts, as attributes."""

    kind: str  # "cpu" or "gpu": what the device is
    source: str = ""  # where the shares come from, in words

    # A step, by what was going on: these add up to 1, of a trace nearly so
    wait_share: float = 0.0  # the loop waits for its next batch
    copy_share: float = 0.0  # the device waits for a copy
    compute_share: float = 0.0  # the device computes
    launch_share: float = 0.0  # the device waits for what the host issues
    other_share: float = 0.0  # the host does something else between two steps
    communication_share: float = 0.0  # only collectives run (a trace)
    outside_share: float = 0.0  # the host is busy outside of PyTorch (a trace)

    stall_share: float = 0.0  # of the waiting: in the worst tenth of the steps
    epoch_starts: float = 0.0  # waits for the first batches of later epochs
    first_epoch: float = 0.0  # by which the first epoch waited longer than as many later steps
    padding: float  # of the tokens computed
    wait_us: float = 0.0  # of the average step; 0: not known
    compute_us: float  # of the average step
    launches_only: bool = False  # a step's parts are the host's: the device's times are not known

    # The machine, and who else uses it
    use: CoreUse = CoreUse()
    others_on_card: float  # other processes' kernels ran on the GPU
    heat: float  # of the readings in which heat held the GPU's clock down
    witness: Witness  # the surest of whether a GPU works while it is busy
    certain_share: float = 0.0  # the GPU works, whatever the host does
    formats: tuple[str, ...]  # of 16 bits, on Tensor Cores; missing where the card is not known
    compiles: bool = True  # whether torch.compile can act on the device

    # How much of what the device could do the model's arithmetic needs
    mfu: float
    peak: Peak  # of the device

    # What looked inside
    xray: Event  # the bench's own: times of one step, µs
    kernels: Breakdown  # what a profiler saw run on a GPU
    trace: Breakdown  # where a profiler's trace is all there is
    ranks: RankTraces  # where there are several
    lines: Lines

    # The loader's workers: how many were timed, and what they did while the loop ran
    workers: int
    worker_cpu: float  # CPU time over the time that one prepares items; above 1 with more threads
    worker_idle: float  # time in which the average worker had no batch to make
    library_threads: int = 0  # that compute in each beside its own; 0: none, or not counted

    # A watched loop
    watched: bool = False
    whole: WallShares  # of its script's time, in its loops and outside of them
    host_wait_share: float  # its host waits for a batch, whatever the device does
    body: Mapping[str, float] = {}  # of its body: no training
    body_s: np.ndarray  # (steps,) of all steps: how long their bodies took
    growth: float = 1.0  # of its last steps over the first, where they take longer and longer
    grown_share: float = 0.0  # what they take beyond the first
    variables: Sequence[dict[str, Any]] = ()  # that keep the graphs of ever more steps
    weights_dtype: str  # of most of what it trains, as "float32"
    spare_card: str  # the name of a GPU here that its model on the CPU leaves alone
    batch_dtype: str  # of the largest array in its first batch
    batch_bytes: float  # of the large arrays in an ordinary batch
    batch_on_gpu: bool = False  # whether the loader makes them on a GPU, as no worker could

    # The settings, and what the simulation makes of them
    knobs: Mapping[str, Setting] = {}
    code: LoopCode = LoopCode()  # how a user's script writes its loop
    is_compiled: bool = False  # whether torch.compile has compiled anything there
    advised: int  # workers that a simulation recommends
    deeper_queue: int  # a prefetch_factor that helps against stalls
    headroom: float  # the gain of a perfect loader, by replay within a pass

    def __init__(self, **facts: Any):
        """Take what was measured; None is not."""
        vars(self).update({name: fact for name, fact in facts.items() if fact is not None})

    if not TYPE_CHECKING:  # which knows the facts that there are

        def __getattr__(self, name: str) -> Any:
            raise (NotMeasured if name in self.__annotations__ else AttributeError)(name)

    def known(self, name: str) -> Any:
        """Return a fact, None where it was not measured. AttributeError: there is no such fact."""
        try:
            return getattr(self, name)
        except NotMeasured:
            return None

    def but(self, **changes: Any) -> Evidence:
        """Return the same facts but for some."""
        return Evidence(**{**vars(self), **changes})

    def in_xray(self, *times: str) -> float:
        """Return the share (0 to 1) of the compute that these times of the x-ray make up."""
        read: list[Any] = [self.xray.get(name) for name in (*times, "window_us")]
        if None in read:
            raise NotMeasured(*times)
        *spent, whole = read
        return min(1.0, sum(spent) / max(whole, 1e-9))

    @property
    def num_workers(self) -> int | None:
        """Of the loader; None where it has none to set, or is not known."""
        count = self.knobs.get("num_workers")
        return None if count is None else int(count)

    @property
    def of_bench(self) -> bool:
        """Whether it is of a pipeline of the bench, and of no loop or trace of somebody's own."""
        return not self.watched and self.knobs.get("xray") is not None

    @property
    def stolen_by_others(self) -> float:
        """The share of its time in which this program had work, and other programs its cores."""
        is_shared = self.use.others_share > limits.FOREIGN_LOAD
        return (self.use.taken or 0.0) if is_shared else 0.0

    @property
    def stalls(self) -> bool:
        """Whether the loop waits seldom and long."""
        return self.stall_share > limits.STALLS
