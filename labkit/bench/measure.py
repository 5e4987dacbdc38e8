"""A notebook's own function on the bench: called once for each row of a grid, written down."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from labkit.bench.by_value import send_by_value
from labkit.bench.grid import TIMED
from labkit.bench.stopwatch import Bench, Skipped
from labkit.bench.user_dataset import fetch
from labkit.instruments import resources
from labkit.orders import Order
from labkit.stamps.events import EventLog, RowFailure

MOST_TEXT = 300  # characters of an error


Failure = tuple[RowFailure, str]  # why a row has no numbers, and in which words


def perform(order: Order, device: torch.device, folder: Path, log: EventLog) -> None:
    """Call the reader's function for each point of the grid, and write its rows as they come.

    Where one runs out of memory, or fails on a card, a fresh process goes on with the next.
    """
    progress = folder / "next_point"
    first = int(progress.read_text()) if progress.exists() else 0
    send_by_value()
    function = fetch(order["source"], folder)[order["measure"]]
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
        failure = call(function, points[number], bench)
        why = {"error": None} if failure is None else {"kind": failure[0], "error": failure[1]}
        for row in bench.rows or [{}]:
            values = points[number] | row.get("values", {}) | bench.returned
            log.write("row", **row | {"values": plain(values)}, **why)
        if failure is None or failure[0] == "skipped" or number + 1 == len(points):
            continue
        if failure[0] == "out of memory" or device.type == "cuda":
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


def call(function: Callable, point: dict[str, object], bench: Bench) -> Failure | None:
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
        return "skipped", str(why)
    except Exception as error:  # whatever the reader's code raises
        if resources.refused(error):
            return "out of memory", "out of memory"
        return "mistake", said(error, function)
    return None


def said(error: BaseException, function: Callable) -> str:
    """Return the error in a line, with where in the reader's cell it was raised."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:MOST_TEXT]
    own = function.__code__.co_filename  # the same for all that came along
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f"{text} ({frames[-1].name}(), line {frames[-1].lineno})" if frames else text


def plain(values: dict[str, object]) -> dict[str, object]:
    """Return values as JSON has them: a tensor of one number is that number, NaN is None."""
    numbers = {}
    for name, value in values.items():
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and value.ndim == 0:
            value = value.item()
        numbers[name] = value
    return json.loads(json.dumps(numbers, default=str), parse_constant=lambda _: None)
