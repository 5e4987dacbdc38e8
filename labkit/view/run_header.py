"""The lines above every figure: what came out, what was simulated, what ran, on which machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.knobs import as_typed
from labkit.results.comparison import ComparedRuns
from labkit.results.core_use import CoreUse
from labkit.results.ranks import RanksData, delays_of
from labkit.results.run_data import RunData
from labkit.text import noise
from labkit.view.style import BOLD, GREY, LOUD, TextLine


def header_of(
    title: str, texts: Iterable[str], runs: Sequence[RunData | RanksData]
) -> list[TextLine]:
    """Return a header: whether the first run was made elsewhere, the title, texts, machines."""
    recorded = [(run.mark, LOUD) for run in runs[:1] if run.mark]
    machines = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [*recorded, (title, BOLD), *((text, GREY) for text in [*texts, *machines])]


def run_header(run: RunData, before: RunData | None) -> list[TextLine]:
    """Return the header of one run's figure; `before` is drawn beside it."""
    runs = [run] if before is None else [run, before]
    title = "No numbers"
    if run.throughput is not None:
        title = f"{run.throughput:,.0f} {run.unit}/s, {busy_of(run)}"
    texts = [
        delays_of(runs),
        as_typed(run.asked.changed()) or "the default pipeline",
        f"not applied on this device: {', '.join(run.not_applied)}" if run.not_applied else "",
        f"MFU of {run.peak}" if run.mfu_text else "",
    ]
    if before is not None:
        compared = ComparedRuns(before, run)
        if compared.speedup:
            title = f"{changes(compared)}: {compared.speedup:.1f}x the throughput, {busy_of(run)}"
        missing = "" if before.throughput else f"{before.outcome}, without numbers to draw"
        texts += [f"before: {note}" for note in (before.mark, missing) if note]
    return header_of(title, texts, runs) + doubts(run)


def changes(compared: ComparedRuns) -> str:
    """Say which knobs differ: "num_workers 0 → 6"."""
    moved = [f"{knob} {old} → {new}" for knob, (old, new) in compared.changed.items()]
    return ", ".join(moved) or "nothing changed"


def doubts(run: RunData | RanksData) -> list[TextLine]:
    """Return the lines that say what the numbers are worth: NOISY, shared, stopped, failed."""
    lines = [noise(run.spread or 0.0)] if run.noisy else []
    use = CoreUse.of(run) if isinstance(run, RunData) else CoreUse()
    if use.is_shared:
        others = f"{use.others:.1f} of {use.cores} cores"
        lines.append(f"SHARED MACHINE: other programs used {others} (psutil)")
    if run.outcome != "finished":
        lines.append(f"{run.ended}: {run.error}" if run.error else run.ended)
    return [(line, LOUD) for line in lines]


def device_of(run: RunData) -> str:
    """Return what the device is called in a figure: CPU, GPU, or device where it is unknown."""
    kind = run.machine.kind
    return "device" if kind == "unknown" else kind.upper()


def busy_of(run: RunData) -> str:
    """Say how busy the device was, and how much of that the model needed where it is known."""
    return ", ".join(filter(None, [f"{device_of(run)} busy {run.busy_text}", run.mfu_text]))
