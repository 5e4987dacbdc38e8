"""`labkit record`: every recorded run of the course on this machine, in files fit to ship.

First what is recorded, then how, then what of it is kept: little, and nothing personal.
"""

from __future__ import annotations

import contextlib
import getpass
import gzip
import json
import math
import platform
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.course.slow_script import stages
from labkit.knobs import check_names
from labkit.results import saving
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.record import read_record
from labkit.results.result import Result, Table
from labkit.spec import Pipeline
from labkit.view.display import Display

BUDGET_S = 480.0  # of all records together
LONGEST_S = 60.0  # of one: then it is stopped and left out
MOST_STEPS = 600  # the first so many: a stretch as it was, since thinned steps would have no teeth
MOST_ITEM_ROWS = 400
MOST_TELEMETRY = 400

# What is shipped, by event, so that what nobody thought of is left out: whole events, and keys of
# others. Kept out: pids, the card's UUID, paths, tracebacks.
WHOLE = (
    "samples begin epoch step items handoff measurement row skipped memory telemetry drift "
    "compiled lost xray xray_trace no_xray done stopped end"
)
KEYS = {
    "spec": "version run utc labkit pipeline experiment params script",
    "machine": "device kind name memory_gib cpu_name cpu_cores host_cores cores_limit ram_gib "
    "shm_gib threads os sm_count compute_capability driver pcie versions",
    "job": "pipeline not_applied",
    "error": "kind message",
}
PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+){2,}")


@dataclass(frozen=True)
class Wanted:
    """One record to make."""

    name: str
    title: str
    spec: Any  # a Pipeline, a stage of the slow script
    needs: tuple[str, ...] = ()  # knobs without which the record would not show what it says


def wanted(kind: str | None = None) -> list[Wanted]:
    """Return what the course records on a "cpu" or "gpu" (None: as here), in notebook order.

    On a GPU some runs are larger, so that they show there what the course says of them: not
    launches, but copies, stalls and formats.
    """
    found: list[Wanted] = []

    def run(name: str, title: str, *needs: str, **knobs: Any) -> None:
        found.append(Wanted(name, title, Pipeline(**knobs), needs))

    def each(name: str, title: str, knob: str, values: tuple, **knobs: Any) -> None:
        for value in values:
            run(f"{name}-{value}", f"{title}, {knob}={value}", **{knob: value}, **knobs)

    on_gpu = (kind or machine().kind) == "gpu"

    def gpu(**knobs: Any) -> dict[str, Any]:
        return knobs if on_gpu else {}

    each("workers", "the default pipeline", "num_workers", (0, 1, 2, 4, 6, 8, 16))
    # On a GPU one process that decodes and no more would keep up
    each("decode", "no storage wait", "num_workers", (0, 2, 8), io_ms=0.0, **gpu(augment=6))
    each("textbook", "50 ms a batch", "num_workers", (0, 1, 5, 8), dataset="sleep")
    stall = {"stall_ms": 300.0, "stall_every": 20, "steps": 200, "num_workers": 6}
    # A GPU asks for a batch every 10 ms: only workers that are faster get ahead of it
    stall |= gpu(num_workers=8, io_ms=0.0)
    each("stall", "a slow disk", "prefetch_factor", (2, 8), **stall)

    # 19 MB a batch, and compute of the same order on every card; a CPU has nothing to copy to
    heavy = gpu(dataset="array", image_px=224, batch_size=128, width=16, depth=2)
    base = {"num_workers": 8, **heavy}
    if on_gpu:
        run("pageable", "pageable memory", **base)
    base |= {"pin_memory": True, "non_blocking": True}
    run("pinned", "page-locked memory", "pin_memory", **base)
    base |= {"prefetch_to_device": True}
    run("prefetched", "the next batch copied meanwhile", "prefetch_to_device", **base)

    fed = {"dataset": "array", "num_workers": 2}  # it keeps up: what is left is the device
    long = fed | gpu(seconds=8.0)  # a T4 takes 0.25 s for a step that an H200 does in 0.03 s
    each("batch", "arrays", "batch_size", (1, 4, 16, 64, 256), **long)
    wide = {**long, "model": "transformer", "batch_size": 64}
    wide |= gpu(batch_size=128, width=2048, depth=1)  # no launches, in BF16 too
    for name in ("fp32", "tf32", "fp16", "bf16"):
        needs = ("precision",) if name != "fp32" else ()
        run(f"precision-{name}", f"a transformer in {name}", *needs, precision=name, **wide)
    small = {**fed, "model": "mlp", "width": 256, **gpu(depth=16)}  # all launches
    for mode in (None, "default", "reduce-overhead"):
        needs, title = ("compile",) if mode else (), f"a small model, compile={mode!r}"
        run(f"compile-{mode or 'off'}", title, *needs, compile=mode, **small)

    for number, stage in enumerate(stages()):
        fixed = f"then {stage.fixes[-1]} fixed" if stage.fixes else "nothing fixed"
        found.append(Wanted(f"capstone-{number}", f"the slow script, {fixed}", stage))
    return found


@dataclass(repr=False)
class Made(Result):
    """The outcome of `record`: the files it wrote, and what it could not record and why."""

    folder: str
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # there already
    left_out: dict[str, str] = field(default_factory=dict)  # {name: why}
    mib: float = 0.0  # of the folder
    seconds: float = 0.0
    interrupted: bool = False

    def table(self) -> Table:
        """Return what was left out and why, below a line on all."""
        title = f"{len(self.made)} records made, {len(self.kept)} were there, "
        title += f"{len(self.left_out)} left out; {self.mib:.2f} MiB in {self.folder}; "
        title += f"{self.seconds:.0f} s"
        on = "interrupted: what was made is kept; run it again to go on"
        rows = [("left out:", name, why) for name, why in self.left_out.items()]
        return Table(rows, title=title, foot=[on if self.interrupted else ""], left=range(3))


def record(out: str | Path, only: Iterable[str] | None = None) -> Made:
    """Measure every recorded run of the course that is not in `out` yet, or those in `only`.

    Records go to `out`/<machine>/<name>.jsonl.gz. An interrupt keeps what has been made; the next
    call goes on from there. Raises ValueError on an unknown name, OSError where it cannot write.
    """
    listed = {each.name: each for each in wanted()}
    check_names(only or (), listed, "record")
    chosen = [each for name, each in listed.items() if only is None or name in only]
    folder = Path(out) / slug(machine().name)
    folder.mkdir(parents=True, exist_ok=True)
    done, start, display = Made(str(folder)), time.monotonic(), Display()
    try:
        for number, each in enumerate(chosen, 1):
            name, target, why = each.name, folder / f"{each.name}.jsonl.gz", ""
            display.line(f"{number}/{len(chosen)} {name}")
            if target.exists():
                done.kept.append(name)
            elif time.monotonic() - start > BUDGET_S:
                why = "out of time: run the same command again to go on"
            elif not (why := _make(each, target)):
                done.made.append(name)
            if why:
                done.left_out[name] = why
            display.final(f"{number}/{len(chosen)} {name} {why or ''}".rstrip())
    except KeyboardInterrupt:
        done.interrupted = True
    done.seconds = time.monotonic() - start
    done.mib = sum(file.stat().st_size for file in folder.glob("*.jsonl.gz")) / 2**20
    return done


def slug(hardware: str) -> str:
    """Return a machine's name as the name of a folder."""
    words = re.sub(r"\((R|TM)\)", "", hardware)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")[:64] or "machine"


def _make(each: Wanted, target: Path) -> str | None:
    """Measure and write one record; return why not, where there is none."""
    deadline = time.monotonic() + LONGEST_S
    try:
        run = launch(each.spec)
    except OSError as error:
        return str(error)
    run.wait_or_raise(each=lambda run: time.monotonic() > deadline and run.stop())
    if run.outcome != "finished":
        return f"took longer than {LONGEST_S:.0f} s" if run.outcome == "stopped" else run.error
    if missing := [knob for knob in each.needs if knob in run.not_applied]:
        return run.not_applied[missing[0]]
    return ship(run.path, target, name=each.name, title=each.title)


def ship(source: Path, target: Path, *, name: str, title: str) -> None:
    """Write the record at `source` (a folder or a file) to `target` (.jsonl.gz), fit to ship."""
    names = {platform.node(), platform.node().split(".")[0]}  # that say whose machine it is
    with contextlib.suppress(KeyError, OSError, ImportError):
        names.add(getpass.getuser())
    names = {name for name in names if len(name) > 1 and name not in ("root", "localhost")}
    spec, *events = (_clean(event, names) for event in _kept(read_record(source)))
    target.parent.mkdir(parents=True, exist_ok=True)
    with saving.replacing(target) as out, gzip.GzipFile("", "wb", fileobj=out, mtime=0) as file:
        for event in [spec | {"name": name, "title": title}, *events]:
            file.write(json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def _kept(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events that are shipped, in order: the first steps, samples and rows of items."""
    steps = sum(event["event"] == "step" for event in events)
    rows = 0
    seen = Counter()
    processes: dict[int, int] = {}  # of loader workers, numbered in place of their pids
    for event in events:
        kind = event["event"]
        seen[kind] += 1
        if kind in KEYS:
            keys = ("event", "t_ns", *KEYS[kind].split())
            yield {key: event[key] for key in keys if key in event}
        if kind == "step" and seen[kind] == MOST_STEPS + 1:
            yield {"event": "thinned", "t_ns": event["t"][0], "steps": steps}
        if kind == "items":
            if "pid" in event:
                event["pid"] = processes.setdefault(event["pid"], len(processes) + 1)
            event = {**event, "rows": event["rows"][: max(0, MOST_ITEM_ROWS - rows)]}
            rows += len(event["rows"])
        most = {"step": MOST_STEPS, "telemetry": MOST_TELEMETRY}.get(kind, math.inf)
        if kind in WHOLE.split() and seen[kind] <= most:
            yield event


def _clean(value: Any, names: set[str]) -> Any:
    """Take paths, and the user's and the machine's name, out of every text."""
    if isinstance(value, dict):
        return {key: _clean(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, names) for each in value]
    if not isinstance(value, str):
        return value
    text = PATH.sub("<path>", value)
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text)
    return text
