"""A finished run as a Weights & Biases run, logged from a process of its own.

It starts when the run is over and its device is free, so it can cost the run nothing; a server
that cannot be reached costs only this process its patience. Offline unless told otherwise: no
account, no key and no network. `python -m labkit.show.wandb_log FOLDER SETTINGS_JSON` is it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from labkit.lab.load import load
from labkit.lab.run import Run

MODES = ("offline", "online", "disabled")
PATIENCE_S = 120  # then this process gives up, whatever the server does
POINTS = 500  # of the utilization timeline


def command(wandb: bool | str | dict[str, Any] | None) -> list[str] | None:
    """Return the command that logs the run in its working folder, or None for no logging.

    Raises ValueError on a setting that is not known.
    """
    if wandb is None or wandb is False:
        return None
    settings = {"project": "labkit", "mode": "offline"}
    if isinstance(wandb, dict):
        unknown = set(wandb) - {"project", "mode", "name"}
        if unknown:
            raise ValueError(f"wandb={wandb!r}: use the keys project, mode and name.")
        settings |= wandb
    elif isinstance(wandb, str):
        settings["mode"] = wandb
    if settings["mode"] not in MODES:
        raise ValueError(f"wandb mode {settings['mode']!r} is not allowed: use one of {MODES}.")
    return [sys.executable, "-m", "labkit.show.wandb_log", ".", json.dumps(settings)]


def log(run: Run, settings: dict[str, str], folder: Path) -> None:
    """Write `run` as one W&B run below `folder`: steps, true utilization timeline, summary."""
    import wandb

    mark = {"recorded_on": run.machine.name} if run.recorded else {}
    session = wandb.init(
        project=settings["project"],
        name=settings.get("name") or run.id,
        mode=settings["mode"],
        dir=str(folder),
        config={"pipeline": run.pipeline.to_dict(), "machine": run.machine.to_dict(), **mark},
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    session.define_metric("seconds")
    session.define_metric("utilization", step_metric="seconds")
    stamps, losses = run.stamps, run.loss
    for i, row in enumerate(stamps):
        session.log(
            {
                "loss": losses[i],
                "wait_ms": 1e3 * (row[1] - row[0]),
                "copy_ms": 1e3 * (row[3] - row[2]),
                "compute_ms": 1e3 * (row[5] - row[4]),
            },
            step=i,
        )
    times, busy = run.timeline(POINTS)
    for second, share in zip(times, busy, strict=True):
        session.log({"seconds": float(second), "utilization": float(share)})
    numbers = run.to_dict()
    kept = ("outcome", "error", "throughput", "utilization", "step_ms", "wait_ms", "copy_ms")
    kept += ("compute_ms", "peak_memory_gib", "energy_j", "noisy")
    session.summary.update({name: numbers[name] for name in kept})
    session.finish()


def main(folder: str, settings: str) -> None:
    """Log the run in `folder`; give up after `PATIENCE_S`."""
    giving_up = threading.Timer(PATIENCE_S, os._exit, args=(1,))
    giving_up.daemon = True
    giving_up.start()
    run = load(folder)
    run.recorded = False  # it was measured here, a moment ago
    log(run, json.loads(settings), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
