"""A notebook's own function on the bench: called once for each row of a grid, written down."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.bench.grid import TIMED
from labkit.bench.stopwatch import Bench, Skipped
from labkit.bench.user_dataset import fetch
from labkit.instruments import machine
from labkit.orders import Order
from labkit.stamps.events import EventLog

MOST_TEXT = 300  # characters of an error


def perform(order: Order, device: torch.device, folder: Path, log: EventLog) -> None:
    """Call the reader's function for each point of the grid, and write its rows as they come."""
    function = fetch(order["source"], folder)[order["measure"]]
    machine.collect_garbage()
    points = order["points"]
    log.write("begin", warmup=0)
    for number, point in enumerate(points):
        log.stage("measuring", number, len(points))
        torch.manual_seed(0)
        if device.type == "cuda":  # what a row says of its memory is its own
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        bench = Bench(device)
        why = call(function, point, bench)
        for row in bench.rows or [{}]:
            values = point | row.get("values", {}) | bench.returned
            log.write("row", **row | {"values": as_json_values(values)}, **why)


def call(function: Callable, point: dict[str, object], bench: Bench) -> dict[str, str | None]:
    """Call the function for one point; return the `error` that gave no numbers, and its kind."""
    try:
        returned = function(bench, **point) or {}
        bench.synchronize()  # an error of this row's kernels is not the next one's
        if not isinstance(returned, dict):
            raise TypeError(f"it returned {type(returned).__name__}: return a dict, or nothing")
        if taken := [name for name in TIMED if name in returned]:
            raise ValueError(f"it returned {taken[0]!r}, a column of the bench's own: rename it")
        bench.returned = returned
    except Skipped as why:
        return {"kind": "skipped", "error": str(why)}
    except Exception as error:  # whatever the reader's code raises
        if machine.is_out_of_memory(error):
            return {"kind": "out of memory", "error": "out of memory"}
        return {"kind": "mistake", "error": error_line(error, function)}
    return {"error": None}


def error_line(error: BaseException, function: Callable) -> str:
    """Return the error in a line, with where in the reader's cell it was raised."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:MOST_TEXT]
    own = function.__code__.co_filename  # the same for all that came along
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f"{text} ({frames[-1].name}(), line {frames[-1].lineno})" if frames else text


def as_json_values(values: dict[str, object]) -> dict[str, object]:
    """Return values as JSON has them: a tensor of one number is that number, NaN is None."""
    return json.loads(json.dumps(values, default=as_json), parse_constant=lambda _: None)


def as_json(value: Any) -> object:
    """Return one number of a tensor or an array as such, and what JSON does not know as a text."""
    return value.item() if getattr(value, "ndim", None) == 0 else str(value)
