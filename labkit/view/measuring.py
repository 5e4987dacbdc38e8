"""`lk.measure`: a notebook's own function, measured on the bench while its rows come in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.bench.grid import TIMED, Grid
from labkit.diagnosis.device_peaks import ROOFS, Peaks
from labkit.process.interrupts import held
from labkit.process.notebook import in_notebook
from labkit.results.launch import launch
from labkit.results.measurements import Measurements
from labkit.view.display import Display, StaticFigure, stage_line
from labkit.view.function_payload import FunctionPayload, signature_of

if TYPE_CHECKING:
    import pandas

    from labkit.bench.stopwatch import Bench

REDRAW_SECONDS = 1.0  # between two drawings of the rows so far
BEST_FIRST = ("tflops", "gib_s", "ms")  # what is drawn while rows come in


def measure(
    function: Callable[..., object], *, device: str = "auto", wait: bool = True, **grid: object
) -> Measurements:
    """Measure your own function for each combination of the given values, in its own process.

    ```python
    def matmul(bench, n, dtype):
        a = torch.randn(n, n, device=bench.device, dtype=getattr(torch, dtype))
        bench.time(lambda: a @ a, flops=2 * n**3)

    products = lk.measure(matmul, n=[512, 1024], dtype=["float32", "bfloat16"])
    ```

    Args:
        function: Called as `function(bench, **values)`. `bench.device` is the device,
            `bench.time(work, flops=, bytes=)` times a call of `work` and adds a row,
            `bench.compare(eager=f, compiled=g)` times several in turn, `bench.skip("needs CUDA")`
            ends a row. A dict that it returns adds columns. It may use what its notebook defines.
        device: "auto" (the accelerator where there is one), "cpu", "cuda", "cuda:1" or "mps".
        wait: Show the rows as they come, until all are there; an interrupt keeps what is done.
            False returns at once: `.rows`, `.stop()` and `.wait()` work meanwhile.
        **grid: A list of values, or one value, for each argument.

    A row that runs out of memory says so, and the next ones are measured in a fresh process.
    Raises ValueError on a grid that does not fit the function, or a function that cannot be sent;
    RuntimeError where every row failed, or none was measured: another run has the device.
    """
    values = {}
    for name, given in grid.items():
        values[name] = list(given) if isinstance(given, (list, tuple, range)) else [given]
    spec = Grid(*signature_of(function), values, device)
    source = FunctionPayload(function)
    with held():
        started = launch(spec, source=source)
        if wait:
            watch_rows(started)
    if not wait:
        return started
    why = started.mistake if len(started) else started.error
    if why:
        raise RuntimeError(f"{function.__name__}: {why}")
    return started


def peaks(*, again: bool = False, threads: int | None = None, device: str = "auto") -> Peaks:
    """Measure what this device reaches: its memory, and matrix products in each number format.

    The roofs of the roofline, and what `run.mfu` and `run.mbu` are held against from then on. They
    are measured once a day, so that all that is said in a day has the same measure.

    Args:
        again: Measure anew, in place of today's values.
        threads: Of a CPU; None: those that the model computes on in a run. A loop that `lk.watch`
            watches computes on `torch.get_num_threads()`.
        device: As of `lk.measure`.
    """

    def peak(bench: Bench, of: str) -> dict[str, object]:
        from labkit.bench.peaks import measured  # in the bench: this process needs no torch

        return measured(bench, of, again=again, threads=threads)

    return Peaks.of(measure(peak, device=device, of=list(ROOFS)))


def watch_rows(measured: Measurements) -> None:
    """Show the rows as they come: a line of progress, and in a notebook the figure so far."""
    shown = Display()
    began = drawn_at = time.monotonic()
    drawn_rows = 0

    def each(running: Measurements) -> None:
        nonlocal drawn_at, drawn_rows
        if not shown.due:
            return
        line = row_line(running, time.monotonic() - began)
        rows = len(running)
        is_time = time.monotonic() - drawn_at > REDRAW_SECONDS
        if in_notebook() and rows > max(1, drawn_rows) and is_time:
            shown.line(line, figure_so_far(running, line))
            drawn_at = time.monotonic()
            drawn_rows = rows
        elif not drawn_rows:
            shown.line(line)

    try:
        measured.wait(each)
    finally:
        shown.final(f"{measured.name}: {measured.numbers} in {time.monotonic() - began:.1f} s")


def row_line(running: Measurements, seconds: float) -> str:
    """Say which row is being measured, and how long the others may take."""
    done = running.stage.get("done")
    points = running.points
    if done is None or done >= len(points):
        return stage_line(running)
    values = ", ".join(f"{name}={value}" for name, value in points[done].items())
    line = f"{running.name}({values}), {done + 1} of {len(points)}"
    if not done:
        return line
    left_s = seconds / done * (len(points) - done)
    return f"{line}, about {left_s:.0f} s left"


def figure_so_far(running: Measurements, title: str) -> StaticFigure | None:
    """Return a figure of the rows so far, by their first two arguments that vary."""
    rows = running.rows
    arguments = [name for name in rows if name not in TIMED and not has_lists(rows[name])]
    varying = [name for name in arguments if rows[name].nunique() > 1]
    known = [name for name in BEST_FIRST if name in rows and rows[name].notna().any()]
    if not known or not varying:
        return None
    by = varying[1] if len(varying) > 1 else None
    return StaticFigure.drawn(running.plot(x=varying[0], y=known[0], by=by, title=title))


def has_lists(column: pandas.Series) -> bool:
    """Return whether a function returned lists in this column, such as the loss of each step."""
    return any(isinstance(value, (list, dict)) for value in column)
