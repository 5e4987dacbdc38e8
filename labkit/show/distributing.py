"""`lk.distributed`: the same pipeline on several ranks, watched while it runs."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Mapping
from typing import Any

from IPython.display import HTML, display

from labkit.results.launch import launch
from labkit.results.ranks import Ranks
from labkit.show import live
from labkit.show.follow import stage_line
from labkit.spec import Distributed, Pipeline

PERIOD_S = 0.2


def distributed(
    pipeline: Pipeline | None = None,
    *,
    ranks: int = 2,
    no_sync: bool = False,
    starve: Mapping[int, Mapping[str, Any]] | None = None,
    rendezvous: Mapping[str, Any] | None = None,
    wait: bool = True,
    **knobs: Any,
) -> Ranks:
    """Run a pipeline on several ranks under DistributedDataParallel and return its Ranks.

    The ranks are started by PyTorch's own launcher (torchrun), gloo on a CPU and nccl on GPUs, in
    processes that end with the kernel. `lk.distributed(pipeline, ranks=2)`.

    Args:
        pipeline: What every rank runs; its batch_size is each rank's own.
        ranks: Processes on this machine.
        no_sync: With accumulation_steps: exchange gradients only before an update.
        starve: {rank: {knob: value}}: ranks with another loader, such as {1: {"io_ms": 10}}.
        rendezvous: torchrun's options for several machines, such as {"nnodes": 2, "node_rank": 0,
            "rdzv_backend": "c10d", "rdzv_endpoint": "host:29500"}; start it on every machine.
        wait: Block with a live view until it has ended; False returns at once.
        **knobs: Changes to `pipeline`, as in `pipeline.but(...)`.

    Raises:
        ValueError: A bad value, before anything starts.
        RuntimeError: Where torchrun does not run (Windows).
        KeyboardInterrupt: While waiting; all ranks have been stopped first.
    """
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise ValueError(f"pipeline={pipeline!r}: give a labkit.Pipeline, or knobs by name.")
    asked = (pipeline or Pipeline()).but(**knobs)
    started = launch(Distributed(asked, ranks, no_sync, starve or {}, rendezvous or {}))
    distributed.last = started
    if wait:
        progress = RanksProgress()
        try:
            started.wait(each=progress.update)
        finally:
            progress.finish(started)
    return started


class RanksProgress:
    """How far the ranks are: a line and rank 0's canvas in a notebook, a line on a terminal."""

    def __init__(self):
        self.shown, self.text, self.view = 0.0, "", None
        self.handle = None
        if live.in_notebook():
            live.allow_widgets()
            self.handle = display(HTML("<code>starting</code>"), display_id=True)

    def update(self, running: Ranks) -> None:
        """Show what the ranks have done, a few times a second."""
        if time.monotonic() - self.shown < PERIOD_S:
            return
        self.shown = time.monotonic()
        text = progress_line(running)
        if self.handle is not None and len(running) and running[0].steps:
            if self.view is None:
                self.view = live.LiveView()
                self.handle.update(self.view)
            self.view.title = f"rank 0 of {running.world_size}: "
            self.view.update(running[0])
        elif self.handle is not None:
            self.handle.update(HTML(f"<code>{html.escape(text)}</code>"))
        elif sys.stderr.isatty():
            print(f"\r{text.ljust(len(self.text))}", end="", file=sys.stderr, flush=True)
        self.text = text

    def finish(self, ended: Ranks) -> None:
        """Leave the figure of all ranks, or a line that says how it ended."""
        if self.handle is None:
            start = "\r" if sys.stderr.isatty() else ""
            print(f"{start}{repr(ended).ljust(len(self.text))}", file=sys.stderr)
        elif ended.times is not None:
            self.handle.update(live.StaticFigure.drawn(ended.plot()))
        else:
            self.handle.update(live.StaticFigure(b"", 0, repr(ended)))
        if self.view is not None:
            self.view.close()


def progress_line(running: Ranks) -> str:
    """What the ranks are busy with, in one line."""
    if not len(running):
        return stage_line(running)
    each = [f"step {rank.steps}" if rank.steps else stage_line(rank) for rank in running]
    return " · ".join(f"rank {rank.rank}: {text}" for rank, text in zip(running, each, strict=True))
