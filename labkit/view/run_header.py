"""The lines above every figure: what came out, what was simulated, what ran, on which machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace

from labkit.diagnosis.core_use import CoreUse
from labkit.knobs import as_typed
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.results.run_text import delays_of
from labkit.results.text import noise
from labkit.view.style import BEFORE, BOLD, GREY, LOUD, PLAIN, Font, TextLine

TITLE_LENGTH = 60  # characters of the knobs in a title
KNOBS_LENGTH = 240  # and in the line below it


def run_header(run: Run, before: Run | None) -> list[TextLine]:
    """Return the header of one run's figure; `before` is drawn in grey behind it."""
    lines = [*recorded_line([run]), (message(run, before), BOLD)]
    rate = f"{run.throughput:,.0f} {run.unit}/s" if before and run.throughput else ""
    lines.append(("; ".join(filter(None, [rate, delays_of([run])])), PLAIN))
    if before is not None:
        lines.append((_before(run, before), Font(colour=BEFORE)))
    lines.append((knobs_line(run), GREY))
    if run.not_applied:
        lines.append((f"not applied on this device: {', '.join(run.not_applied)}", GREY))
    if run.mfu_text:
        lines.append((f"MFU of {run.peak}", GREY))
    lines += machine_lines([run] if before is None else [run, before])
    return [line for line in lines if line[0]] + doubts(run)


def message(run: Run, before: Run | None = None) -> str:
    """Return the title: what came out, in numbers, and what was changed to get there."""
    if run.throughput is None:
        return "No numbers"
    busy = busy_of(run)
    if before is None or not before.throughput:
        return f"{run.throughput:,.0f} {run.unit}/s, {busy}"
    changed = _apart(before, run, TITLE_LENGTH)
    gain = run.throughput / before.throughput
    return f"{changed}: {gain:.1f}x the throughput, {busy}"


def several_header(title: str, texts: Iterable[str], runs: Iterable[Run | Ranks]) -> list[TextLine]:
    """Return the header of a figure of several runs; empty texts are left out."""
    runs = list(runs)
    lines = [(text, PLAIN) for text in texts if text]
    return [*recorded_line(runs), (title, BOLD), *lines, *machine_lines(runs)]


def recorded_line(runs: Iterable[Run | Ranks]) -> list[TextLine]:
    """Return the line that says what was not measured here; none where all was."""
    names = sorted({run.machine.name for run in runs if run.recorded})
    return [(f"RECORDED on {', '.join(names)}", replace(LOUD, size=10))] if names else []


def machine_lines(runs: Iterable[Run | Ranks]) -> list[TextLine]:
    """Return a line for each machine that the runs are from."""
    known = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [(line, GREY) for line in known]


def doubts(run: Run | Ranks) -> list[TextLine]:
    """Return the lines that say what the numbers are worth: NOISY, shared, stopped, failed."""
    lines = [noise(run.spread or 0.0)] if run.noisy else []
    use = CoreUse.of(run) if isinstance(run, Run) else CoreUse()
    if use.is_shared:
        others = f"{use.others:.1f} of {use.cores} cores"
        lines.append(f"SHARED MACHINE: other programs used {others} (psutil)")
    if run.outcome != "finished":
        lines.append(f"{run.ended}: {run.error}" if run.error else run.ended)
    return [(line, LOUD) for line in lines]


def knobs_line(run: Run) -> str:
    """Return the knobs that were asked for and are not the defaults."""
    asked = _fixes(run) or run.asked.changed()
    return shortened(asked, KNOBS_LENGTH) or "the default pipeline"


def device_of(run: Run) -> str:
    """Return what the device is called in a figure: CPU, GPU, or device where it is unknown."""
    kind = run.machine.kind
    return "device" if kind == "unknown" else kind.upper()


def busy_of(run: Run) -> str:
    """Say how busy the device was, and how much of that the model needed where it is known."""
    return ", ".join(filter(None, [f"{device_of(run)} busy {run.busy_text}", run.mfu_text]))


def _before(run: Run, before: Run) -> str:
    """Name the run before by the knobs in which it differs, and say where it is from."""
    mark = f"{before.mark}, " if before.recorded else ""
    name = f"before: {mark}{_apart(run, before, KNOBS_LENGTH)}"
    if before.utilization is None:
        return f"{name}: {before.outcome}, without numbers to draw"
    text = f"{name}: {message(before)}"
    delays = delays_of([before])
    return text if delays == delays_of([run]) else f"{text}; {delays or 'no simulated delay'}"


def _apart(old: Run, new: Run, length: int) -> str:
    """Return the knobs of `new` that differ from `old`; of the slow script what is fixed."""
    known = old.asked.to_dict()
    asked = new.asked.to_dict()
    changed = {name: value for name, value in asked.items() if value != known.get(name)}
    return shortened(_fixes(new) or changed, length) or "the same knobs"


def shortened(knobs: Mapping[str, object], length: int) -> str:
    """Write knobs as they are typed, as many as fit the length."""
    return textwrap.shorten(as_typed(knobs), length, placeholder=" …")


def _fixes(run: Run) -> dict[str, object]:
    """Return what is fixed of the slow script; {} for any other run."""
    script = (run.event("spec") or {}).get("script")
    fixes = script.get("fixes") if isinstance(script, dict) else None
    return {"fixed": ", ".join(map(str, fixes)) or "nothing"} if isinstance(fixes, list) else {}
