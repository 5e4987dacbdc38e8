"""The lines above every figure: what came out, what was simulated, what ran, on which machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from labkit.knobs import as_typed
from labkit.results.core_use import CoreUse
from labkit.results.ranks import RanksData, delays_of
from labkit.results.run_data import RunData
from labkit.text import noise
from labkit.view.style import BOLD, GREY, LOUD, TextLine

TITLE_LENGTH = 60  # characters of the knobs in a title
KNOBS_LENGTH = 240  # and in the line below it


def header_of(
    title: str, texts: Iterable[str], runs: Sequence[RunData | RanksData]
) -> list[TextLine]:
    """Return a header: whether the first run was made elsewhere, the title, texts, machines."""
    recorded = [(run.mark, LOUD) for run in runs[:1] if run.mark]
    machines = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [*recorded, (title, BOLD), *((text, GREY) for text in [*texts, *machines] if text)]


def run_header(run: RunData, before: RunData | None) -> list[TextLine]:
    """Return the header of one run's figure; `before` is drawn beside it."""
    runs = [run] if before is None else [run, before]
    texts = [
        delays_of(runs),
        shortened(run.asked.changed(), KNOBS_LENGTH) or "the default pipeline",
        f"before: {_before(run, before)}" if before else "",
        f"not applied on this device: {', '.join(run.not_applied)}" if run.not_applied else "",
        f"MFU of {run.peak}" if run.mfu_text else "",
    ]
    return header_of(message(run, before), texts, runs) + doubts(run)


def message(run: RunData, before: RunData | None = None) -> str:
    """Return the title: what came out, in numbers, and what was changed to get there."""
    if run.throughput is None:
        return "No numbers"
    if before is None or not before.throughput:
        return f"{run.throughput:,.0f} {run.unit}/s, {busy_of(run)}"
    gain = run.throughput / before.throughput
    return f"{_changes(before, run, TITLE_LENGTH)}: {gain:.1f}x the throughput, {busy_of(run)}"


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


def _before(run: RunData, before: RunData) -> str:
    """Name the run before by the knobs in which it differs, and say where it is from."""
    missing = "" if before.throughput else f": {before.outcome}, without numbers to draw"
    name = f"{_changes(run, before, KNOBS_LENGTH)}{missing}"
    return f"{before.mark}, {name}" if before.mark else name


def _changes(old: RunData, new: RunData, length: int) -> str:
    """Return the knobs of `new` that differ from `old`."""
    known = old.asked.to_dict()
    changed = {name: v for name, v in new.asked.to_dict().items() if v != known.get(name)}
    return shortened(changed, length) or "the same knobs"


def shortened(knobs: Mapping[str, object], length: int) -> str:
    """Write knobs as they are typed, as many as fit the length."""
    return textwrap.shorten(as_typed(knobs), length, placeholder=" …")
