"""A finished run as a Weights & Biases run: numbers, steps, true utilization timeline.

With `lk.run(..., wandb=True)` a process of its own logs it when the run is over: a server that
cannot be reached costs only that process its patience. Offline unless told otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from labkit.api import Run

MODES = ("offline", "online", "disabled")
PATIENCE_S = 120  # then this process gives up, whatever the server does
Asked = bool | str | dict[str, str] | None


def command(asked: Asked) -> list[str] | None:
    """Return the command that logs the run in its working folder, or None for no logging."""
    if not asked:
        return None
    settings = {"project": "labkit", "mode": "offline"}
    if asked is not True:
        settings |= {"mode": asked} if isinstance(asked, str) else asked
    if set(settings) - {"project", "mode", "name"}:
        raise ValueError(f"wandb={asked!r}: use the keys project, mode and name.")
    if settings["mode"] not in MODES:
        raise ValueError(f"wandb mode {settings['mode']!r}: use one of {MODES}.")
    if settings["mode"] == "online" and not os.environ.get("WANDB_API_KEY"):
        raise ValueError("wandb mode 'online' needs WANDB_API_KEY set; 'offline' needs no key.")
    return [sys.executable, "-m", "labkit.view.wandb_log", ".", json.dumps(settings)]


def log(run: Run, **settings: Any) -> None:
    """Write `run` as one W&B run in its folder: steps, true utilization timeline, summary."""
    import wandb

    told = run.to_dict()
    session = wandb.init(
        **{"name": run.id, **settings},
        dir=str(run.path),
        config=told,
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    session.define_metric("utilization", step_metric="seconds")
    for step, row in run.frame.to_dict("index").items():
        session.log(row, step=step)
    for second, share in np.column_stack(run.clock.utilization(200)).tolist():
        session.log({"seconds": second, "utilization": share})
    session.summary.update({k: v for k, v in told.items() if isinstance(v, (int, float, str))})
    session.finish()


def main(folder: str, settings: str) -> None:
    """Log the run in `folder`; give up after `PATIENCE_S`."""
    os.environ.pop("WANDB_SERVICE", None)  # the kernel's own session of W&B is not ours to join
    timer = threading.Timer(PATIENCE_S, give_up)
    timer.daemon = True
    timer.start()
    log(Run(Path(folder)), **json.loads(settings))


def give_up() -> None:
    """Say why there is no W&B run, and end this process and what W&B started from it."""
    why = f"labkit: W&B: no answer in {PATIENCE_S} s. The run itself is complete."
    print(why, file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
