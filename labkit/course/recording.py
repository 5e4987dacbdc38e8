"""`labkit record`: every recorded run of the course on this machine, in files fit to ship."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.course.records import Wanted, wanted
from labkit.results.launch import launch
from labkit.results.machine import machine
from labkit.results.recordings import slug
from labkit.results.shipping import ship

BUDGET_S = 480.0  # of all records together
LONGEST_S = 60.0  # of one: then it is stopped and left out
SHIPPED_MIB = 4.0  # what may come with the package


@dataclass
class Recorded:
    """What `record` did: the files it wrote, and what it could not record and why."""

    folder: Path
    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # there already
    left_out: dict[str, str] = field(default_factory=dict)  # {name: why}
    seconds: float = 0.0

    @property
    def mib(self) -> float:
        """Size of the folder, MiB."""
        return sum(file.stat().st_size for file in self.folder.glob("*.jsonl.gz")) / 2**20

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "folder": str(self.folder), "made": self.made, "kept": self.kept,
            "left_out": self.left_out, "seconds": self.seconds, "mib": self.mib,
        }  # fmt: skip

    def __repr__(self) -> str:
        lines = [
            f"{len(self.made)} records made, {len(self.kept)} were there, "
            f"{len(self.left_out)} left out; {self.mib:.2f} MiB in {self.folder}; "
            f"{self.seconds:.0f} s"
        ]
        if self.mib > SHIPPED_MIB:
            lines.append(f"  too large to ship with the package: {SHIPPED_MIB:.0f} MiB at most")
        lines += [f"  left out: {name}: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


def record(
    out: str | Path,
    only: Iterable[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Recorded:
    """Measure every recorded run of the course that is not in `out` yet; return a summary.

    Records go to `out`/<machine>/<name>.jsonl.gz: no host name, user name, path or key is in them.
    An interrupt keeps what has been made; the next call goes on from there.

    Args:
        out: The folder to write to.
        only: Names to record; None: all of the course's.
        progress: Called with (done, total, what is next).

    Raises:
        ValueError: A name in `only` that the course does not have.
        OSError: `out` cannot be written.
    """
    listed = _chosen(only)
    folder = Path(out) / slug(machine().name)
    folder.mkdir(parents=True, exist_ok=True)
    done, start = Recorded(folder), time.monotonic()
    record.last = done  # what an interrupt leaves
    for number, each in enumerate(listed):
        if progress is not None:
            progress(number, len(listed), each.name)
        target = folder / f"{each.name}.jsonl.gz"
        if target.exists():
            done.kept.append(each.name)
        elif time.monotonic() - start > BUDGET_S:
            done.left_out[each.name] = "out of time: run the same command again to go on"
        elif why := _make(each, target):
            done.left_out[each.name] = why
        else:
            done.made.append(each.name)
        done.seconds = time.monotonic() - start
    if progress is not None:
        progress(len(listed), len(listed), "done")
    return done


def _chosen(only: Iterable[str] | None) -> list[Wanted]:
    listed = wanted()
    if only is None:
        return listed
    only = list(only)
    if unknown := [name for name in only if name not in {each.name for each in listed}]:
        known = ", ".join(each.name for each in listed)
        raise ValueError(f"{unknown[0]!r} is not recorded by the course. There are: {known}.")
    return [each for each in listed if each.name in only]


def _make(each: Wanted, target: Path) -> str | None:
    """Measure and write one record; return why not, where there is none."""
    deadline = time.monotonic() + LONGEST_S

    def give_up(_run: Any) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError

    try:
        run = launch(each.spec)
        try:
            run.wait(each=give_up)
        except TimeoutError:
            run.stop()
            return f"took longer than {LONGEST_S:.0f} s"
    except OSError as error:
        return str(error)
    if run.outcome != "finished":
        return run.error or run.outcome
    if missing := [knob for knob in each.needs if knob in run.not_applied]:
        return run.not_applied[missing[0]]
    if not getattr(run, "points", True):
        return "; ".join(run.skipped.values()) or "nothing could be measured"
    ship(run.path, target, name=each.name, title=each.title)
    return None


class Bar:
    """A progress bar on stderr: one line, rewritten on a terminal, one line a record elsewhere."""

    WIDTH = 24

    def __call__(self, done: int, total: int, name: str) -> None:
        """Show that `done` of `total` are through and `name` is next."""
        full = self.WIDTH * done // total
        line = f"[{'#' * full}{'.' * (self.WIDTH - full)}] {done}/{total} {name}"
        live = sys.stderr.isatty()
        end = "\n" if not live or done == total else ""
        print(("\r" if live else "") + line.ljust(70), end=end, file=sys.stderr, flush=True)
