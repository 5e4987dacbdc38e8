"""The lines above every figure: what was run, what was stated, on which machine, how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.results.result import noise
from labkit.results.run import Run
from labkit.show.style import ALARM, BEFORE

BOLD = {"fontsize": 10, "fontweight": "bold"}
GREY = {"fontsize": 8, "color": "#555555"}
LOUD = {"fontweight": "bold", "color": ALARM}

SLEEPS = ("prep_ms", "io_ms", "stall_ms", "stall_every", "dataset")  # knobs that change them

Line = tuple[str, dict[str, Any]]


def run_header(run: Run, before: Run | None = None) -> list[Line]:
    """Return the header of one run's figure; `before` is drawn in grey behind it."""
    lines = [*recorded_line([run]), (knobs_of(run), BOLD)]
    if run.utilization is not None:
        lines.append((_with_stated(_numbers(run), [run]), {}))
    if before is not None:
        font = {"fontweight": "bold"} if before.recorded else {}
        lines.append((_before(run, before), {"color": BEFORE} | font))
    if run.not_applied:
        lines.append((f"not applied on this device: {', '.join(run.not_applied)}", GREY))
    lines += machine_lines([run] if before is None else [run, before])
    if run.noisy:
        lines.append((noise(run.spread), LOUD))
    if run.outcome != "finished":
        why = f": {run.error}" if run.error else ""
        lines.append((f"{run.outcome} after {_steps(run.steps)}{why}", LOUD))
    return lines


def several_header(title: str, texts: list[str], runs: Iterable[Run]) -> list[Line]:
    """Return the header of a figure of several runs; empty texts are left out."""
    runs = list(runs)
    lines = [(text, {}) for text in texts if text]
    return [*recorded_line(runs), (title, BOLD), *lines, *machine_lines(runs)]


def recorded_line(runs: Iterable[Run]) -> list[Line]:
    """Return the line that says what was not measured here; none where all was."""
    names = sorted({run.machine.name for run in runs if run.recorded})
    return [(f"RECORDED on {', '.join(names)}", LOUD | {"fontsize": 10})] if names else []


def machine_lines(runs: Iterable[Run]) -> list[Line]:
    """Return a line for each machine that the runs are from."""
    known = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [(line, GREY) for line in known]


def stated_of(runs: Iterable[Run], varied: Iterable[str] = ()) -> str:
    """Return the stated waits behind the runs' numbers, and that they were stated; "" if none.

    Where they differ, and by one of the `varied` knobs, the figure itself says which is which.
    """
    if any(run.alias for run in runs):
        return "simulated delays are hidden"
    stated = dict.fromkeys(r.pipeline.simulated_delay for r in runs if r.throughput is not None)
    sleeps = [name for name in SLEEPS if name in varied]
    if len(stated) > 1 and sleeps:
        return f"simulated delay: {' and '.join(sleeps)}, as shown"
    text = " / ".join(text or "none" for text in stated) if any(stated) else ""
    return f"simulated delay: {text}" if text else ""


def knobs_of(run: Run, length: int = 240) -> str:
    """Return the knobs that were asked for and are not the defaults, or the run's alias."""
    if run.alias:
        return run.alias[:length]
    text = ", ".join(f"{name}={value!r}" for name, value in run.asked.changed().items())
    text = f"the slow script, {fixes}" if (fixes := _fixes(run)) else text
    return (text or "the default pipeline")[:length]


def device_of(run: Run) -> str:
    """Return what the device is called in a figure: CPU, GPU, or device where it is unknown."""
    kind = run.machine.kind
    return "device" if kind == "unknown" else kind.upper()


def _numbers(run: Run) -> str:
    return f"{run.throughput:,.0f} {run.unit}/s, {device_of(run)} busy {run.busy_text}"


def _before(run: Run, before: Run) -> str:
    """Name the run before by the knobs in which it differs, and say where it is from."""
    now = run.asked.to_dict()
    differs = {name: old for name, old in before.asked.to_dict().items() if old != now[name]}
    knobs = ", ".join(f"{name}={old!r}" for name, old in differs.items())
    knobs = _fixes(before) or knobs or "the same knobs"
    mark = f"{before.mark}, " if before.recorded else ""
    if before.utilization is None:
        return f"before: {mark}{knobs[:240]}: {before.outcome}, without numbers to draw"
    text = f"before (grey): {mark}{knobs[:240]}: {_numbers(before)}"
    return text if stated_of([run]) == stated_of([before]) else _with_stated(text, [before])


def _fixes(run: Run) -> str:
    """Name what is fixed of the slow script; "" for any other run."""
    script = (run.event("spec") or {}).get("script")
    fixes = script.get("fixes") if isinstance(script, dict) else None
    if not isinstance(fixes, list):
        return ""
    return f"fixed: {', '.join(map(str, fixes))}" if fixes else "nothing fixed"


def _with_stated(text: str, runs: list[Run]) -> str:
    return "; ".join(filter(None, [text, stated_of(runs)]))


def _steps(count: int) -> str:
    return f"{count:,} step" + ("" if count == 1 else "s")
