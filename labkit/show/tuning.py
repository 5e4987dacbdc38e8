"""`lk.tune`: a search for loader settings that a person can watch, and stop at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.show.display import Display
from labkit.show.live import Follower
from labkit.tuner.job import TuningJob
from labkit.tuner.tuning import Tuning


def tune(
    dataset_or_pipeline: Any,
    *,
    collate_fn: Any = None,
    step: Any = None,
    batch_size: int | Sequence[int] | None = None,
    baseline: dict[str, Any] | None = None,
    max_workers: int | None = None,
    seconds: float = 1.5,
) -> Tuning:
    """Find the cheapest DataLoader settings that are as fast as the fastest.

    A prediction from each run says what to try next; isolated runs measure it; what is too close
    to tell is measured again. An interrupt keeps the best so far in `lk.tune.last`.

    Args:
        dataset_or_pipeline: A `labkit.Pipeline`; or your own dataset or DataLoader; or
            "module:function", a function that returns the dataset.
        collate_fn: Yours, as an object or "module:name".
        step: What your loop does with one batch, a function of it, as an object or "module:name".
            Without it nothing computes, and the loader's own throughput is what is raised.
        batch_size: The batch size to tune for (a dataset's is 32 where it is left out); several,
            to search among them too: the first is where it starts, and another batch size is
            another training.
        baseline: The settings you have now, such as `{"num_workers": 2}`; else PyTorch's defaults,
            or those of the pipeline or DataLoader given.
        max_workers: The most workers to try; else 12, or twice the cores where that is more.
        seconds: How long each setting is measured, s; its start comes on top.

    Raises:
        ValueError: Something that cannot be tuned, before anything runs.
        RuntimeError: The starting point cannot be measured, with the reason: a dataset that
            fails on some item, for example.
        KeyboardInterrupt: The run that was going on has been stopped first.
    """
    job = TuningJob(
        dataset_or_pipeline, collate_fn=collate_fn, step=step, batch_size=batch_size,
        baseline=baseline, max_workers=max_workers, seconds=seconds,
    )  # fmt: skip
    tune.last = tuning = job.tuning
    display = Display()

    def page(now: str = "") -> Any:
        """Return the growing table as HTML; None outside a notebook."""
        if display.handle is None:
            return None
        from IPython.display import HTML

        return HTML(tuning.table(now)._repr_html_())

    def running(run: Any) -> None:
        if display.due:
            follower = Follower()
            follower.read(run)
            # without how many steps it might do: the clock ends it
            now = follower.line(run).replace(f" of {follower.steps_asked}", "")
            display.line(now, page(now))

    try:
        return job.run(lambda: display.final(line_of(tuning), page()), running)
    finally:
        display.final(tuning.headline, page())


def line_of(tuning: Tuning) -> str:
    """Say in one line what the last trial gave, what was expected of it, and why it was tried."""
    trial = tuning.latest
    rate = f"{trial.rates[-1]:,.0f} samples/s" if trial.rates and not trial.error else "failed"
    hoped = f" (predicted {trial.predicted})" if trial.predicted else ""
    again = f", run {len(trial.rates)}" if len(trial.rates) > 1 else f": {trial.why}"
    what = tuning.verdict(trial)
    return f"{trial.setting}: {rate}{hoped}{'; ' + what if what else ''}{again}"
