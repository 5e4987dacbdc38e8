"""Running one setting: on a pipeline or on the reader's own data, in a process of its own.

What is given as "module:name" is imported there. Objects travel as a file in the run's folder,
written by the user's kernel, read and deleted by its own child; no record ever holds one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit import quotas
from labkit.bench.user_loop import knobs_of
from labkit.diagnosis.run_costs import cores_used
from labkit.diagnosis.thresholds import FOREIGN_LOAD
from labkit.process import launcher
from labkit.results.launch import launch
from labkit.spec import STEP_KNOBS, Pipeline
from labkit.tuning.search import CLOSE, Measured
from labkit.tuning.tuning import Setting, Trial

NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
PAYLOAD = "source.pkl"
PARTS = {
    "collate_fn": "a function of a list of items", "step": "a function of one batch",
    "model": "an nn.Module, or a function that makes one",
    "optimizer": "a torch optimizer, or a function of the parameters that makes one",
}  # fmt: skip
MAX_PAYLOAD = 512 * 2**20  # bytes; a larger data set is better made where it is used
FEWEST_STEPS = 24  # behind the warm-up; with fewer, throughput is a guess
FEWEST_FIRST = 6  # of the first run, which is there to predict from
PRECISE = 0.03  # of the throughput, two standard errors: longer tells nothing more
BLOCKS = 8  # stretches of a run whose spread gives its standard error
LONGEST_S = 30.0  # of one run
LOOK_S = 1.2  # of a run, which its x-ray and the handing over of a batch take off
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry
SHARE = 0.8  # of the memory that is free: the rest is for what was not foreseen


@dataclass(frozen=True)
class Source:
    """A dataset, and the collate_fn and step that go with it, ready to be sent."""

    name: str  # what tables and snippets call the dataset
    imports: dict[str, str]  # {"dataset", "collate_fn" or "step": "module:name"}
    payload: bytes | None = field(repr=False)  # the parts given as objects, pickled by value
    parts: tuple[str, ...]  # the names of all parts that were given

    def place(self, folder: Path) -> dict[str, Any]:
        """Write the payload into a run's folder, for its owner alone; return the bench's order."""
        here = os.getcwd()
        path = [here, *(os.path.abspath(place or here) for place in sys.path)]
        order = {"imports": self.imports, "payload": None, "cwd": here, "path": path}
        order["parts"] = list(self.parts)
        if self.payload is None:
            return order
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(folder / PAYLOAD, flags, 0o600), "wb") as file:
            file.write(self.payload)
        return order | {"payload": PAYLOAD}

    def described(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return what the run's first event tells: the settings, and whose data it is."""
        names = [*Setting.__dataclass_fields__, *(STEP_KNOBS if "model" in self.parts else ())]
        knobs = {name: getattr(pipeline, name) for name in names}
        return {"pipeline": knobs, "watched": {"loader": f"DataLoader({self.name})"}}


def of(dataset: Any, collate_fn: Any = None, step: Any = None, **training: Any) -> Source:
    """Make a Source; raises ValueError on what cannot be sent or loaded, saying why.

    `training` may have the `model` and the `optimizer` of the step, or functions that make them.
    """
    given = {"dataset": dataset, "collate_fn": collate_fn, "step": step, **training}
    given = {name: part for name, part in given.items() if part is not None}
    imports = {name: part for name, part in given.items() if isinstance(part, str)}
    objects = {name: part for name, part in given.items() if name not in imports}
    for name, text in imports.items():
        if not NAMED.fullmatch(text):
            raise ValueError(f"{name}={text!r}: write module:function, as in 'train:make_dataset'.")
    for name, part in objects.items():
        if name != "dataset" and not callable(part) and not hasattr(part, "param_groups"):
            raise ValueError(f"{name}={part!r}: give {PARTS[name]}.")
    kind = type(dataset).__name__
    if "dataset" in objects:
        if hasattr(dataset, "__next__"):
            raise ValueError(
                f"{kind} is a one-shot iterator: it can be read once, by one process. Pass a "
                "dataset with __len__ and __getitem__, or an IterableDataset."
            )
        reads = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
        if isinstance(dataset, type) or not reads:
            made = " Pass an instance, not the class or function." if callable(dataset) else ""
            raise ValueError(f"{kind} is not a dataset: it needs __len__ and __getitem__.{made}")
    payload = _pickled(objects) if objects else None
    return Source(imports.get("dataset") or kind, imports, payload, tuple(given))


def of_loader(loader: Any, step: Any = None, **more: Any) -> tuple[Source, dict[str, Any]]:
    """Return the Source of a DataLoader and its settings as {knob: value}."""
    if loader.batch_size is None:
        raise ValueError(
            "this DataLoader has a batch_sampler of its own (or none): give its dataset, and "
            "batch_size=..., collate_fn=... instead."
        )
    knobs = {"prefetch_factor": None} | knobs_of(loader)
    if not knobs["num_workers"]:
        knobs |= {"prefetch_factor": None, "persistent_workers": False}
    return of(loader.dataset, loader.collate_fn, step, **more), knobs


def _pickled(objects: dict[str, Any]) -> bytes:
    import cloudpickle  # plain pickle cannot carry what is defined in a notebook

    instead = "give 'module:function' that makes it"
    for name, part in objects.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise ValueError(
                f"{name} ({type(part).__name__}) cannot be sent to a process of its own: "
                f"{type(error).__name__}: {error}. Open files and locks when they are first used, "
                f"or {instead}."
            ) from None
    payload = cloudpickle.dumps(objects)
    if len(payload) > MAX_PAYLOAD:
        size = f"{len(payload) / 2**20:.0f} MiB (at most {MAX_PAYLOAD // 2**20})"
        raise ValueError(f"the dataset holds {size}, to be sent to every run: {instead}.")
    return payload


class Bench:
    """Runs settings of one pipeline, or of one source, for about `seconds` each.

    To `look` also takes the x-ray, and gives every run the same items, so that losses compare.
    """

    def __init__(
        self, pipeline: Pipeline, source: Source | None, seconds: float, look: bool = False
    ):
        self.pipeline, self.source, self.seconds, self.look = pipeline, source, seconds, look
        self.count, self.fastest = 0, 0.0  # runs that were made; samples/s of the best of them
        self.disturbed: list[float] = []  # the share of the cores that others took, where much
        self.each: Callable[[Any], None] | None = None  # called with the run that is going on

    def measure(self, setting: Setting, rate: float | None) -> Measured:
        """Run `setting` once; once more, and longer, where a run of unknown rate was too short."""
        run = self._run(setting, rate)
        short = run.steps < FEWEST_FIRST + setting.in_flight
        if run.outcome == "finished" and rate is None and short:
            run = self._run(setting, run.throughput or run.samples / self.seconds or 1.0)
        if run.outcome != "finished" and not (run.outcome == "stopped" and run.throughput):
            return None, run.error or run.outcome, run
        self.fastest = max(self.fastest, run.throughput or 0.0)
        slow = f"only {run.steps} batches in {LONGEST_S:.0f} s: too slow to measure"
        return run.throughput, None if run.throughput else slow, run

    def _decided(self, run: Any, setting: Setting) -> bool:
        """Return whether more steps would tell nothing: the rate is known, or below the best."""
        if run.steps < FEWEST_STEPS + setting.in_flight:
            return False
        ends = run.stamps[run.warmup - 1 :, 5]
        if ends[-1] - ends[0] < self.seconds / 2:
            return False
        blocks = [part.mean() for part in np.array_split(np.diff(ends), BLOCKS)]
        step_s = float(np.mean(blocks))
        error = 2 * float(np.std(blocks, ddof=1)) / math.sqrt(BLOCKS) / step_s
        most = (1 + error) * setting.batch_size / step_s
        return error < PRECISE or most < (1 - CLOSE) * self.fastest

    def _run(self, setting: Setting, rate: float | None) -> Any:
        seconds = self.seconds
        if rate:  # the queues are filled first, and that does not count
            batch_s = setting.batch_size / rate
            filling = min(2 * self.seconds, setting.in_flight * batch_s)
            seconds = min(LONGEST_S, max(seconds, FEWEST_STEPS * batch_s) + filling)
        knobs = setting.to_dict() | {"steps": ENDLESS, "seconds": seconds, "xray": False}
        if self.look:
            knobs |= {"xray": True, "seconds": seconds + LOOK_S}
        elif self.source is not None:  # other items each time: none is in the cache from before
            knobs["seed"] = self.pipeline.seed + self.count
        self.count += 1
        bare = self.pipeline.but(num_workers=0, prefetch_factor=None, persistent_workers=False)

        def each(run: Any) -> None:
            if self.each:
                self.each(run)
            if rate and not self.look and self._decided(run, setting):
                run.stop()

        run = launch(bare.but(**knobs), source=self.source).wait_or_raise(each)
        if not self.look:
            warm_up()
        taken = (cores_used(run)[1] or 0.0) / (run.machine.cpu_cores or 1)
        self.disturbed += [taken] if taken > FOREIGN_LOAD else []
        return run


def warm_up() -> None:
    """Have the next run's process import torch while something is found out here."""
    if os.environ.get("LABKIT_WARM") != "0":
        launcher.stand_by(forced=True)


def free_memory() -> tuple[int, int | None]:
    """Return the bytes free in RAM (of the container, where there is one) and in /dev/shm."""
    shm = None
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm").free
    return quotas.free_ram_bytes(), shm


def refusal(setting: Setting, trials: list[Trial], ram: int, shm: int | None) -> str | None:
    """Return why there is no memory for `setting`, from what smaller ones took; None if there is.

    Counted are the batches in the queues, one in each worker's hands, and a copy of the process for
    each worker: a forked worker shares its parent's pages until it counts a reference in them.
    """
    per_sample, worker = 0.0, 0.0  # bytes
    for here, run in ((trial.setting, run) for trial in trials for run in trial.runs):
        batch = (run.event("handoff") or {}).get("bytes") or 0
        per_sample = per_sample or batch / here.batch_size
        rss_gib = max((sample.get("rss_gib") or 0.0 for sample in run.telemetry), default=0.0)
        worker = max(worker, rss_gib * 2**30 / (1 + here.num_workers))
    batches = (setting.in_flight + setting.num_workers) * (2 if setting.pin_memory else 1)
    queues = batches * per_sample * setting.batch_size
    whole = queues + setting.num_workers * worker
    shared = "/dev/shm (docker run --shm-size)"
    for size, free, place in ((queues, shm, shared), (whole, ram, "RAM")):
        if free is not None and size > SHARE * free:
            return f"may take {size / 2**30:.2f} GiB; {free / 2**30:.2f} GiB of {place} are free"
    return None
