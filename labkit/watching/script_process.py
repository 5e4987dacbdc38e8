"""What `labkit watch` does beside a script, in its own process, by the folder of the script's runs.

The hook leaves a file there for each step of the way that it came (`watching/site`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from labkit.instruments.telemetry_process import TELEMETRY_AFTER_NS, start_telemetry
from labkit.stamps.events import FILE_NAME, events_named, now_ns
from labkit.watching.run_folders import folders_in

WRAP = "Wrap what the loop goes over: `for batch in lk.watch(loader):`."
FAILED = (
    "error: labkit could not be loaded in the script's process ({}). Install labkit in the "
    "environment that the script runs in."
)
NOT_LOADED = (
    "error: labkit's hook was not loaded. The command starts no Python, or starts it with -I, -E "
    "or -S, or with another PYTHONPATH: leave these out and add to PYTHONPATH what it holds, or "
    "change the loop: `for batch in lk.watch(loader):`."
)
NO_TORCH = f"error: no process imported torch.utils.data or torch.optim. {WRAP}"
NO_LOOP = f"no DataLoader was iterated, and no optimizer made three steps. {WRAP}"
NO_STEP = "a loop was seen, but none of its steps was over when it ended: let it run for longer."


def why_nothing(folder: Path) -> str:
    """Say why no step of a script was recorded, and what would change that."""
    if (folder / "failed").exists():
        return FAILED.format((folder / "failed").read_text(encoding="utf-8", errors="replace"))
    if not (folder / "python").exists():
        return NOT_LOADED
    if not (folder / "torch").exists():
        return NO_TORCH
    return NO_STEP if folders_in(folder) else NO_LOOP


class ScriptTelemetry:
    """Samples the instruments beside each loop of a script, by processes of ours, not of its own.

    Each of them ends with the loop's process, and with us.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.beside: dict[Path, subprocess.Popen[bytes]] = {}  # each run's

    def look(self) -> list[Path]:
        """Start what loops still lack; return the folders of all."""
        found = folders_in(self.folder)
        for run in found:
            if run not in self.beside and sys.platform == "linux" and _has_run(run):
                self.beside[run] = start_telemetry(run)
        return found

    def end(self) -> None:
        """End those that are left."""
        for process in self.beside.values():
            process.kill()
            process.wait()


def _has_run(folder: Path) -> bool:
    """Whether a loop knows its device, and has for a while."""
    machine = next(events_named("machine", folder / FILE_NAME), None)
    return machine is not None and now_ns() - machine["t_ns"] > TELEMETRY_AFTER_NS
