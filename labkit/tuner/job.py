"""From what the reader gives to a search that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.results.machine import machine
from labkit.spec import KNOBS, Pipeline
from labkit.tuner import memory, source
from labkit.tuner.expect import Expectation
from labkit.tuner.search import Search
from labkit.tuner.setting import Setting, space
from labkit.tuner.trials import Bench
from labkit.tuner.tuning import Tuning

BATCH_SIZE = 32  # of a dataset that is given without one
LEAST_MAX_WORKERS = 12  # workers that wait take no core, so more of them than cores may help


class TuningJob:
    """A search on a pipeline or on the reader's own data, checked and ready.

    Attributes:
        tuning: The result, filled as it goes.
        live: Called with the run that is going on, often.
        each: Called with the tuning whenever a trial begins or ends.
    """

    def __init__(
        self,
        what: Any,
        *,
        collate_fn: Any = None,
        step: Any = None,
        batch_size: int | Sequence[int] | None = None,
        baseline: dict[str, Any] | None = None,
        max_workers: int | None = None,
        seconds: float = 1.5,
    ):
        """See `labkit.show.tuning.tune`; raises ValueError on what cannot be tuned."""
        sizes = _sizes(batch_size)
        knobs: dict[str, Any] = {}
        if isinstance(what, Pipeline):
            if collate_fn is not None or step is not None:
                raise ValueError("collate_fn and step go with a dataset of your own.")
            self.source, pipeline, name = None, what, repr(what)
            knobs = what.to_dict()
        else:
            if source.is_loader(what):
                self.source, knobs = source.of_loader(what, step)
            else:
                self.source, knobs = source.of(what, collate_fn, step), {"batch_size": BATCH_SIZE}
            # without a step nothing computes, and a device would only be started in vain
            pipeline = Pipeline(device="auto" if "step" in self.source.parts else "cpu")
            name = self.source.name
        if sizes:
            knobs["batch_size"] = sizes[0]
        knobs |= _baseline(baseline)
        start = Setting.of(knobs)
        pipeline.but(**start.to_dict())  # raises ValueError on a bad one
        sizes = list(dict.fromkeys([start.batch_size, *sizes[1:]]))
        here = machine()
        most = max(LEAST_MAX_WORKERS, 2 * (here.cpu_cores or 1))
        most = most if max_workers is None else KNOBS["num_workers"].check(max_workers)
        self.tuning = Tuning(name, start, here.line)
        self.live: Callable[[Any], None] = lambda run: None
        self.each: Callable[[Tuning], None] = lambda tuning: None
        self.expectation = Expectation()
        self.bench = Bench(pipeline, self.source, seconds, lambda run: self.live(run))
        self.search = Search(
            self.tuning,
            [setting for setting in space(start, most, sizes) if setting != start],
            self.bench.measure,
            self.expectation,
            lambda setting, trials: memory.refusal(setting, trials, memory.Free.now()),
            lambda tuning: self.each(tuning),
            self._variants(start, here.kind == "gpu" and here.device.startswith("cuda")),
        )

    def run(self) -> Tuning:
        """Search; raises RuntimeError where the starting point cannot be measured."""
        try:
            return self.search.run()
        finally:
            if self.tuning.winner:
                self._explain()

    def _variants(self, start: Setting, cuda: bool) -> tuple[dict[str, Any], ...]:
        """Return what to try on the winner, and say why of what is not tried."""
        reasons = self.tuning.reasons
        if not cuda:
            reasons["pin_memory"] = "no CUDA device to copy to: page-locked memory gains nothing"
        elif self.source is not None and "step" not in self.source.parts:
            reasons["pin_memory"] = (
                "not tried: without a step that copies batches to the GPU it cannot act; with one, "
                "pin_memory=True and .to(device, non_blocking=True) are worth measuring"
            )
        else:
            return ({"pin_memory": not start.pin_memory},)
        return ()

    def _explain(self) -> None:
        """Say why the settings that were not searched are as they are, and how it was predicted."""
        tuning = self.tuning
        if not tuning.winner.setting.num_workers:
            tuning.reasons["persistent_workers"] = "there are no workers to keep"
        else:
            start_s = start_up_s(tuning.winner.runs[-1])
            tuning.extra["persistent_workers"] = True
            tuning.reasons["persistent_workers"] = (
                f"keeps the workers from one epoch to the next: starting them, up to the first "
                f"batch, took {start_s:.2f} s; it changes nothing within an epoch"
            )
        if self.bench.disturbed:
            tuning.notes.append(
                f"Other programs used up to {max(self.bench.disturbed):.0%} of the cores in "
                f"{len(self.bench.disturbed)} of {self.bench.count} runs: their numbers are "
                "doubtful; tune again on a quiet machine."
            )
        if self.expectation.cannot:
            tuning.notes.append(
                f"Guessed from waiting and computing, as one {self.expectation.cannot}"
            )
        if self.source is not None and "step" not in self.source.parts:
            tuning.notes.append(
                "No step was given: this is the most the loader gives. A model that takes less "
                "needs fewer workers: give step= to tune for it."
            )


def start_up_s(run: Any) -> float:
    """Return the time from starting the loader to its first batch, s."""
    first = run.steps_since(0)[0]["t"][1]
    return (first - run.event("begin")["t_ns"]) / 1e9


def _sizes(batch_size: Any) -> list[int]:
    if batch_size is None:
        return []
    given = [batch_size] if isinstance(batch_size, int) else list(batch_size)
    return [KNOBS["batch_size"].check(size) for size in given]


def _baseline(given: dict[str, Any] | None) -> dict[str, Any]:
    allowed = set(Setting.__dataclass_fields__) - {"batch_size"}
    for name in given or {}:
        if name not in allowed:
            raise ValueError(f"baseline {name}={given[name]!r}: give {', '.join(sorted(allowed))}.")
    return {name: KNOBS[name].check(value) for name, value in (given or {}).items()}
