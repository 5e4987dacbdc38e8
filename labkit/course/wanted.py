"""Every recorded run of the course: what `labkit record` measures, notebook by notebook.

On a GPU some runs are larger, so that they show there what the course says of them: not launches,
but copies, stalls and formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.course.slow_script import stages
from labkit.experiments import EXPERIMENTS, Experiment
from labkit.results.machine import machine
from labkit.spec import Pipeline

# Runs are of the default length, 80 steps or 4 s, and the clock has 8 minutes for all. Some have
# twice as long on a GPU: a T4 takes 0.25 s for a step that an H200 does in 0.03 s.

FED = {"dataset": "array", "num_workers": 2}  # a loader that keeps up: what is left is the device
PINNED = {"pin_memory": True, "non_blocking": True}


@dataclass(frozen=True)
class Wanted:
    """One record to make."""

    name: str
    title: str
    spec: Any  # a Pipeline, an Experiment, a stage of the slow script
    needs: tuple[str, ...] = ()  # knobs without which the record would not show what it says


def wanted(kind: str | None = None) -> list[Wanted]:
    """Return what the course records on a "cpu" or "gpu", in the order of its notebooks.

    `kind` is that of the device here where it is None.
    """
    on_gpu = (kind or machine().kind) == "gpu"
    return [*_loader(on_gpu), *_copies(on_gpu), *_device(on_gpu), *_script(), *_experiments()]


def _run(name: str, title: str, needs: tuple[str, ...] = (), **knobs: Any) -> Wanted:
    return Wanted(name, title, Pipeline(**knobs), needs)


def _each(name: str, title: str, knob: str, values: tuple, **knobs: Any) -> list[Wanted]:
    return [
        _run(f"{name}-{value}", f"{title}, {knob}={value}", **{knob: value}, **knobs)
        for value in values
    ]


def _loader(on_gpu: bool) -> list[Wanted]:
    stall = {"stall_ms": 300.0, "stall_every": 20, "num_workers": 6, "steps": 200}
    decode = {"io_ms": 0.0}
    if on_gpu:  # which asks for a batch every 10 ms: only workers that are faster get ahead of it,
        stall |= {"num_workers": 8, "io_ms": 0.0}
        decode["augment"] = 6  # and one process that decodes and no more would keep up
    workers = "num_workers"
    return [
        *_each("workers", "the default pipeline", workers, (0, 1, 2, 4, 6, 8, 16)),
        *_each("decode", "no storage wait", workers, (0, 2, 8), **decode),
        *_each("textbook", "50 ms a batch", workers, (0, 1, 5, 8), dataset="sleep"),
        *_each("stall", "a slow disk", "prefetch_factor", (2, 8), **stall),
    ]


def _copies(on_gpu: bool) -> list[Wanted]:
    # 19 MB a batch, and compute of the same order on every card; a CPU has nothing to copy to
    heavy = {"dataset": "array", "image_px": 224, "batch_size": 128, "width": 16, "depth": 2}
    base = {"num_workers": 8, **(heavy if on_gpu else {})}
    beside = {**base, **PINNED, "prefetch_to_device": True}
    return [
        *([_run("pageable", "pageable memory", **base)] if on_gpu else []),
        _run("pinned", "page-locked memory", ("pin_memory",), **base, **PINNED),
        _run("prefetched", "the next batch copied meanwhile", ("prefetch_to_device",), **beside),
    ]


def _device(on_gpu: bool) -> list[Wanted]:
    fed = {**FED, "seconds": 8.0} if on_gpu else FED
    transformer = {**fed, "model": "transformer", "batch_size": 64}
    small = {**FED, "model": "mlp", "width": 256}
    if on_gpu:
        transformer |= {"batch_size": 128, "width": 2048, "depth": 1}  # no launches, in BF16 too
        small["depth"] = 16  # all launches
    found = _each("batch", "arrays", "batch_size", (1, 4, 16, 64, 256), **fed)
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        title, needs = f"a transformer in {precision}", _needs(precision=precision != "fp32")
        found.append(
            _run(f"precision-{precision}", title, needs, precision=precision, **transformer)
        )
    for mode in (None, "default", "reduce-overhead"):
        title, needs = f"a small model, compile={mode!r}", _needs(compile=mode is not None)
        found.append(_run(f"compile-{mode or 'off'}", title, needs, compile=mode, **small))
    return found


def _needs(**knobs: bool) -> tuple[str, ...]:
    return tuple(name for name, needed in knobs.items() if needed)


def _script() -> list[Wanted]:
    found = []
    for number, stage in enumerate(stages()):
        fixed = f"then {stage.fixes[-1]} fixed" if stage.fixes else "nothing fixed"
        found.append(Wanted(f"capstone-{number}", f"the slow script, {fixed}", stage))
    return found


def _experiments() -> list[Wanted]:
    names = [name for name in EXPERIMENTS if name != "exercise"]
    return [Wanted(name, EXPERIMENTS[name].help, Experiment(name)) for name in names]
