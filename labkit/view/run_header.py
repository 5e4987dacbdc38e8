"""The lines above every figure: what came out, what was simulated, what ran, on which machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.diagnosis.run_costs import cores_used
from labkit.diagnosis.thresholds import FOREIGN_LOAD
from labkit.results.ranks import Ranks
from labkit.results.result import noise
from labkit.results.run import Run
from labkit.view.style import ALARM, BEFORE

BOLD = {"fontsize": 10, "fontweight": "bold"}
GREY = {"fontsize": 8, "color": "#555555"}
LOUD = {"fontweight": "bold", "color": ALARM}
TITLE, KNOBS = 60, 240  # characters of the knobs in a title, and below it

Line = tuple[str, dict[str, Any]]


def run_header(run: Run, before: Run | None = None) -> list[Line]:
    """Return the header of one run's figure; `before` is drawn in grey behind it."""
    lines = [*recorded_line([run]), (message(run, before), BOLD)]
    numbers = f"{run.throughput:,.0f} {run.unit}/s" if before and run.throughput else ""
    lines.append(("; ".join(filter(None, [numbers, delays_of([run])])), {}))
    if before is not None:
        lines.append((_before(run, before), {"color": BEFORE}))
    lines.append((knobs_of(run), GREY))
    if run.not_applied:
        lines.append((f"not applied on this device: {', '.join(run.not_applied)}", GREY))
    if run.mfu_text:
        lines.append((f"MFU of {run.peak}", GREY))
    lines += machine_lines([run] if before is None else [run, before])
    return [line for line in lines if line[0]] + doubts(run)


def message(run: Run, before: Run | None = None) -> str:
    """Return the title: what came out, in numbers, and what was changed to get there."""
    if run.utilization is None:
        return run.alias or "No numbers"
    busy = busy_of(run)
    if before is None or not before.throughput or run.throughput is None:
        return f"{run.throughput:,.0f} {run.unit}/s, {busy}"
    changed = run.alias or _apart(before, run)
    return f"{changed[:TITLE]}: {run.throughput / before.throughput:.1f}x the throughput, {busy}"


def several_header(title: str, texts: list[str], runs: Iterable[Run | Ranks]) -> list[Line]:
    """Return the header of a figure of several runs; empty texts are left out."""
    runs = list(runs)
    lines = [(text, {}) for text in texts if text]
    return [*recorded_line(runs), (title, BOLD), *lines, *machine_lines(runs)]


def recorded_line(runs: Iterable[Run | Ranks]) -> list[Line]:
    """Return the line that says what was not measured here; none where all was."""
    names = sorted({run.machine.name for run in runs if run.recorded})
    return [(f"RECORDED on {', '.join(names)}", LOUD | {"fontsize": 10})] if names else []


def machine_lines(runs: Iterable[Run | Ranks]) -> list[Line]:
    """Return a line for each machine that the runs are from."""
    known = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [(line, GREY) for line in known]


def doubts(run: Any) -> list[Line]:
    """Return the lines that say what the numbers are worth: NOISY, shared, stopped, failed."""
    lines, cores = [noise(run.spread)] if run.noisy else [], run.machine.cpu_cores or 1
    others = cores_used(run)[1] or 0.0 if isinstance(run, Run) else 0.0
    if others > FOREIGN_LOAD * cores:
        lines.append(f"SHARED MACHINE: other programs used {others:.1f} of {cores} cores (psutil)")
    if run.outcome != "finished":
        lines.append(f"{run.ended}{f': {run.error}' if run.error else ''}")
    return [(line, LOUD) for line in lines]


def delays_of(runs: Iterable[Any], varied: Iterable[str] = ()) -> str:
    """Return the simulated delays behind the runs' numbers; "" if there are none.

    Where they differ by one of the `varied` knobs, the figure itself says which is which.
    """
    runs = list(runs)
    if any(getattr(run, "alias", None) for run in runs):
        return "simulated delays are hidden"
    found = dict.fromkeys(r.pipeline.simulated_delay for r in runs if r.throughput is not None)
    if len(found) > 1 and (swept := [name for name in varied if "_ms" in name]):
        return f"simulated delay: {' and '.join(swept)}, as shown"
    return f"simulated delay: {' / '.join(text or 'none' for text in found)}" if any(found) else ""


def knobs_of(run: Run) -> str:
    """Return the knobs that were asked for and are not the defaults, or the run's alias."""
    fixes = _fixes(run)
    text = f"the slow script, {fixes}" if fixes else said(run.asked.changed())
    return (run.alias or text or "the default pipeline")[:KNOBS]


def device_of(run: Run) -> str:
    """Return what the device is called in a figure: CPU, GPU, or device where it is unknown."""
    kind = run.machine.kind
    return "device" if kind == "unknown" else kind.upper()


def busy_of(run: Run) -> str:
    """Say how busy the device was, and how much of that the model needed where it is known."""
    return ", ".join(filter(None, [f"{device_of(run)} busy {run.busy_text}", run.mfu_text]))


def _before(run: Run, before: Run) -> str:
    """Name the run before by the knobs in which it differs, and say where it is from."""
    knobs = f"{f'{before.mark}, ' if before.recorded else ''}{_apart(run, before)[:KNOBS]}"
    if before.utilization is None:
        return f"before: {knobs}: {before.outcome}, without numbers to draw"
    text, other = f"before: {knobs}: {message(before)}", delays_of([before])
    return text if other == delays_of([run]) else f"{text}; {other or 'no simulated delay'}"


def _apart(old: Run, new: Run) -> str:
    """Return what is fixed in `new` of the slow script, or its knobs that `old` had otherwise."""
    known = old.asked.to_dict()
    changed = {n: v for n, v in new.asked.to_dict().items() if v != known.get(n)}
    return _fixes(new) or said(changed) or "the same knobs"


def said(knobs: Mapping[str, Any]) -> str:
    """Write knobs as they are given: num_workers=2, io_ms=5."""
    return ", ".join(f"{name}={value!r}" for name, value in knobs.items())


def _fixes(run: Run) -> str:
    """Name what is fixed of the slow script; "" for any other run."""
    script = (run.event("spec") or {}).get("script")
    if not isinstance(script, dict) or not isinstance(script.get("fixes"), list):
        return ""
    fixes = ", ".join(map(str, script["fixes"]))
    return f"fixed: {fixes}" if fixes else "nothing fixed"
