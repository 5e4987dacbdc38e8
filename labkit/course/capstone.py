"""`lk.slow_script`: the capstone's script, isolated, recorded and watched like every other run."""

from __future__ import annotations

from typing import Any

from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.results.slow_script import SlowScript
from labkit.show import wandb_log
from labkit.show.running import follow


def slow_script(
    *fixes: str,
    wait: bool = True,
    wandb: bool | str | dict[str, Any] | None = None,
    before: Run | None = None,
    steps: int | None = None,
) -> Run:
    """Run the deliberately slow training script with some of its bottlenecks fixed.

    Args:
        *fixes: Any of "data", "items", "copies", "launches", "precision", "memory", "compile";
            none of them is the script at its slowest.
        wait: As in `lk.run`.
        wandb: As in `lk.run`.
        before: A run to draw faintly behind this one.
        steps: Batches to train on; None leaves it to labkit.

    Raises:
        ValueError: A name that is no fix, before anything starts.
    """
    started = launch(SlowScript(fixes, steps), after=wandb_log.command(wandb))
    slow_script.last = started
    return follow(started, before) if wait else started


slow_script.last = None
