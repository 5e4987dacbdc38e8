"""Make every recorded run of the course on this machine, in files fit to ship.

    python maintain/recordings.py --out DIR [--only NAME ...]

`recordings.json` beside this lists the runs. Of each, little is kept, and nothing personal. Records
go to DIR/<machine>/<name>.jsonl.gz; `lk.load` reads them. Run it again to go on
after an interrupt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit import Pipeline, load, machine
from labkit.api import launch
from labkit.course.slow_script import LADDER, SlowScript
from labkit.knobs import check_names
from labkit.results import saving
from labkit.results.privacy import for_others
from labkit.stamps.record import Event, events_of
from labkit.text import with_texts

LISTED = Path(__file__).with_name("recordings.json")
LONGEST_S = 60.0  # s, for one: a longer one is stopped and left out
MOST_STEPS = 600  # the first of a run: thinned out, they would show no teeth
MOST_ITEM_ROWS = 400
MOST_TELEMETRY = 400

# What is shipped, by event: whole events, and keys of others. Anything else is left out, so that
# pids, the card's UUID, paths and tracebacks are not shipped by mistake
WHOLE = (
    "samples begin epoch step items handoff row memory telemetry drift clock work suspended "
    "compiled lost xray xray_trace no_xray done stopped end"
)
KEYS = {
    "spec": "version run utc labkit pipeline script measure points",
    "machine": "device kind name memory_gib cpu_name cpu_cores host_cores cores_limit ram_gib "
    "threads sm_count compute_capability versions",
    "job": "pipeline not_applied unit",
    "error": "kind message",
}


@dataclass(frozen=True)
class Wanted:
    """One record to make."""

    name: str
    title: str
    spec: Pipeline | SlowScript
    needs: tuple[str, ...] = ()  # knobs without which the record would not show what it says


def wanted(kind: str | None = None) -> list[Wanted]:
    """Return what the course records on a "cpu" or "gpu" (None: as here), in notebook order.

    On a GPU some runs are larger, so that copies, stalls and number formats show there too, rather
    than launches.
    """
    kind = kind or machine().kind
    found = []
    for name, row in json.loads(LISTED.read_text(encoding="utf-8")).items():
        if row.get("only", kind) != kind:
            continue
        pipeline = Pipeline(**row.get("knobs", {}))
        if kind == "gpu":
            pipeline = pipeline.but(**row.get("gpu", {}))
        title = row["title"]
        needs = tuple(row.get("needs", ()))
        knob, values = row.get("vary", ("", ()))
        for value in values:
            varied = pipeline.but(**{knob: value})
            found.append(Wanted(f"{name}-{value}", f"{title}, {knob}={value}", varied, needs))
        if not knob:
            found.append(Wanted(name, title, pipeline, needs))
    for number in range(len(LADDER) + 1):
        stage = SlowScript(LADDER[:number])
        fixed = f"then {stage.fixes[-1]} fixed" if stage.fixes else "nothing fixed"
        found.append(Wanted(f"capstone-{number}", f"the slow script, {fixed}", stage))
    return found


def record(out: str | Path, only: Iterable[str] | None = None) -> dict[str, str | None]:
    """Measure every recorded run of the course that is not in `out` yet, or those in `only`.

    Records go to `out`/<machine>/<name>.jsonl.gz. Returns why each was left out, None where it is
    there. Raises ValueError on an unknown name, OSError where it cannot write.
    """
    listed = {each.name: each for each in wanted()}
    check_names(only or (), listed, "record")
    folder = Path(out) / slug(machine().name)
    folder.mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str | None] = {}
    for name in only or listed:
        target = folder / f"{name}.jsonl.gz"
        left_out[name] = why = None if target.exists() else _make(listed[name], target)
        print(f"{name}: {why or target}", file=sys.stderr)
    return left_out


def slug(hardware: str) -> str:
    """Return a machine's name as the name of a folder."""
    words = re.sub(r"\((R|TM)\)", "", hardware)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")[:64] or "machine"


def _make(each: Wanted, target: Path) -> str | None:
    """Measure and write one record; return why it cannot be made here."""
    deadline = time.monotonic() + LONGEST_S
    run = launch(each.spec)
    run.wait_or_raise(lambda run: run.stop() if time.monotonic() > deadline else None)
    if run.outcome == "stopped":
        return f"took longer than {LONGEST_S:.0f} s"
    if run.outcome != "finished":
        return run.error or run.outcome
    if lacks := [run.not_applied[knob] for knob in each.needs if knob in run.not_applied]:
        return lacks[0]
    ship(run.path, target, name=each.name, title=each.title)
    return None


def ship(source: Path, target: Path, *, name: str, title: str) -> None:
    """Write the record at `source` (a folder or a file) to `target` (.jsonl.gz), fit to ship."""
    kept = [*_kept(list(events_of(source)))]
    kept[0] |= {"name": name, "title": title}
    # what was read from an x-ray: the trace stays behind
    kept += map(json.loads, load(source).extra_lines())
    shown = [with_texts(event, for_others) for event in kept]
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        saving.replacing(target, overwrite=True) as out,
        gzip.GzipFile("", "wb", fileobj=out, mtime=0) as file,
    ):
        file.writelines(f"{json.dumps(event, allow_nan=False)}\n".encode() for event in shown)


def _kept(events: list[Event]) -> Iterator[Event]:
    """Yield the events that are shipped, in order: the first steps, samples and rows of items."""
    most = {"step": MOST_STEPS, "telemetry": MOST_TELEMETRY}
    steps = sum(event["event"] == "step" for event in events)
    rows_left = MOST_ITEM_ROWS
    seen = Counter()
    for event in events:
        kind = event["event"]
        seen[kind] += 1
        if kind in KEYS:
            keys = ("event", "t_ns", *KEYS[kind].split())
            yield {key: event[key] for key in keys if key in event}
        if kind == "step" and seen[kind] == MOST_STEPS + 1:
            yield {"event": "thinned", "t_ns": event["t"][0], "steps": steps}
        if kind == "items":
            event = {**event, "rows": event["rows"][:rows_left]}
            rows_left -= len(event["rows"])
        if kind in WHOLE.split() and seen[kind] <= most.get(kind, seen[kind]):
            yield event


def main() -> None:
    """Record what the command line asks for; an interrupt keeps what has been made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the folder that the records go to")
    parser.add_argument("--only", action="append", help="record this one; may be repeated")
    options = parser.parse_args()
    record(options.out, options.only)


if __name__ == "__main__":
    main()
