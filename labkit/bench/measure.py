"""A notebook's own function on the bench: called once for each row of a grid, written down."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from labkit.bench.by_value import send_by_value
from labkit.bench.grid import TIMED
from labkit.bench.stopwatch import Bench, Skipped
from labkit.bench.user_parts import fetch
from labkit.instruments import resources
from labkit.orders import RowsOrder
from labkit.stamps.events import EventLog, RowFailure
from labkit.stamps.keys import without_literals

MOST_TEXT = 300  # characters of an error


@dataclass(frozen=True)
class Failure:
    """Why a row has no numbers."""

    kind: RowFailure
    text: str


def perform(order: RowsOrder, device: torch.device, folder: Path, log: EventLog) -> None:
    """Call the reader's function for each point of the grid, and write its rows as they come.

    Where one runs out of memory, or fails on a card, a fresh process goes on with the next; see
    `begin_anew`.
    """
    progress = folder / "next_point"
    first = int(progress.read_text()) if progress.exists() else 0
    send_by_value()
    # Of the reader's own kernel; the code is {function: the lines of the cell that defines it}
    function, code = fetch(order["source"], folder)
    resources.collect_garbage()
    points = order["points"]
    log.write("begin", warmup=0)
    for number in range(first, len(points)):
        log.stage("measuring", number, len(points))
        progress.write_text(str(number + 1))
        torch.manual_seed(0)
        if device.type == "cuda":  # what a row says of its memory is its own
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        bench = Bench(device)
        failure = call(function, points[number], bench, code)
        for row in bench.rows or [{}]:
            values = points[number] | row.get("values", {}) | bench.returned
            write_row(log, {**row, "values": plain(values)}, failure)
        if failure is None or failure.kind == "skipped" or number + 1 == len(points):
            continue
        if failure.kind == "out of memory" or device.type == "cuda":
            begin_anew(folder)
    (folder / order["source"]["payload"]).unlink()
    progress.unlink()


def begin_anew(folder: Path) -> None:
    """Leave nothing of what a row allocated or broke: a fresh process takes this one's place.

    On Windows, which cannot do that, this one goes on.
    """
    if sys.platform != "win32":
        os.chdir(folder)  # where it was started: the reader's files are no modules
        os.execv(sys.executable, sys.orig_argv)  # does not return


def write_row(log: EventLog, row: dict[str, object], failure: Failure | None) -> None:
    """Write one row of the table, and why it has no numbers where it has none."""
    why = {"error": failure.text, "kind": failure.kind} if failure else {"error": None}
    log.write("row", **row, **why)


def call(
    function: Callable, point: dict[str, object], bench: Bench, code: dict[str, list[str]]
) -> Failure | None:
    """Call the function for one point; return why it gave no numbers, or None."""
    try:
        returned = function(bench, **point) or {}
        bench.synchronize()  # an error of this row's kernels is not the next one's
        if not isinstance(returned, dict):
            raise TypeError(f"it returned {type(returned).__name__}: return a dict, or nothing")
        if taken := [name for name in TIMED if name in returned]:
            raise ValueError(f"it returned {taken[0]!r}, a column of the bench's own: rename it")
        bench.returned = returned
    except Skipped as why:
        return Failure("skipped", str(why))
    except Exception as error:  # whatever the reader's code raises
        if resources.refused(error):
            return Failure("out of memory", "out of memory")
        return Failure("mistake", said(error, function, code))
    return None


def said(error: BaseException, function: Callable, code: dict[str, list[str]]) -> str:
    """Return the error in a line, with the line of the reader's cell that raised it.

    `code` has the lines of the cell that defines each function, by the function's name.
    """
    text = f"{type(error).__name__}: {error}".splitlines()[0][:MOST_TEXT]
    own = function.__code__.co_filename  # the same for all that came along
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    if frames:
        number = frames[-1].lineno or 0
        lines = code.get(frames[-1].name) or code[function.__name__]
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        text += f" (line {number}: {without_literals(line)})"
    return text


def plain(values: dict[str, object]) -> dict[str, object]:
    """Return values as JSON has them: a tensor of one number is that number, NaN is None."""
    numbers = {}
    for name, value in values.items():
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and value.ndim == 0:
            value = value.item()
        numbers[name] = value
    return json.loads(json.dumps(numbers, default=str), parse_constant=lambda _: None)
