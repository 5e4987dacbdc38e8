"""`lk.measure`: a notebook's own function, measured on the bench while its rows come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.api import Measurements, launch
from labkit.bench.grid import Grid
from labkit.results.device_peaks import ROOFS, Peaks
from labkit.results.log_reader import in_notebook
from labkit.results.payload import Source
from labkit.stamps.interrupts import collect_interrupts
from labkit.view.display import Display
from labkit.view.live_frame import stage_line

if TYPE_CHECKING:
    import pandas

    from labkit.bench.stopwatch import Bench
    from labkit.view.panel import FunctionPanel
    from labkit.view.rows_figure import Rows


def measure(
    function: Callable[..., object],
    *,
    device: str = "auto",
    wait: bool = True,
    x: str | None = None,
    y: str = "ms",
    by: str | None = None,
    title: str | Callable[[pandas.DataFrame], str] = "",
    beside: Rows | None = None,
    log: str | None = None,
    **grid: object,
) -> Measurements:
    """Measure your own function for each combination of the given values, in its own process.

    A notebook shows a panel: the rows as a figure, a control for each argument, and **Measure**,
    which measures one more point and adds it to the figure and to `.rows`.

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
        x, y, by, beside, log: How the rows are drawn, as in `lk.plot`; left out, over the first
            two arguments that vary, and in ms.
        title: Above the figure: a text, or a function of the rows that returns one.
        **grid: A list of values, or one value, for each argument.

    A row that runs out of memory says so, and the next ones are measured in a fresh process.
    Raises ValueError on a grid that does not fit the function, whose arguments cannot have a name
    above, or a function that cannot be sent; RuntimeError where every row failed, or none was
    measured: another run has the device.
    """
    spec = Grid.of(function, grid, device)
    source = Source.of(spec.name, {spec.name: function}, "make it inside the function")
    drawing = {"x": x, "y": y, "by": by, "title": title, "beside": beside, "log": log}
    with collect_interrupts():
        started = launch(spec, source=source)
        if not wait:
            return started
        if in_notebook():
            from labkit.view.panel import FunctionPanel

            return wait_for_rows(started, FunctionPanel(spec, source, drawing, started))
        return wait_for_rows(started, Display())


def peaks(*, device: str = "auto") -> Peaks:
    """Measure what this device reaches: its memory, and matrix products in each number format.

    The roofs of the roofline, and what `run.mfu` and `run.mbu` are held against from then on. They
    are measured once a day, so that all that is said in a day has the same measure.

    Args:
        device: As of `lk.measure`.
    """

    def peak(bench: Bench, of: str) -> dict[str, object]:
        from labkit.bench.roofline import todays_rate  # in the bench: this process needs no torch

        return todays_rate(bench, of)

    with collect_interrupts():
        started = measure(peak, device=device, wait=False, of=list(ROOFS))
        return Peaks.of(wait_for_rows(started, Display()))


def wait_for_rows(measured: Measurements, shown: Display | FunctionPanel) -> Measurements:
    """Show which row is being measured, and in the end all rows; return what was measured.

    Raises RuntimeError where every row failed, or there is none.
    """
    try:
        measured.wait(lambda running: shown.line(f"{running.name}: {stage_line(running)}"))
    finally:
        shown.final(f"{measured.name}: {measured.numbers}")
    why = measured.mistake if len(measured) else measured.error
    if why:
        raise RuntimeError(f"{measured.name}: {why}")
    return measured
