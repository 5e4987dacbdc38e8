"""The kernel's handle on one run: its folder, and the supervisor of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from labkit.orders import Plan
from labkit.process import family, folders, leftovers
from labkit.process.run_mark import delete_run
from labkit.stamps.events import RESERVE_BYTES, RESERVE_NAME, SPEC_NAME, EventLog, private

TELEMETRY = [sys.executable, "-m", "labkit.instruments.telemetry"]
JOIN_S = 5.0  # the supervisor is gone 2 s after a forced stop at the latest
ROOT = str(Path(__file__).parents[2])  # where the package `labkit` is

runs: list[Handle] = []  # a handle that is collected would close the pipe and end its run


class Handle:
    """The kernel's handle on the supervisor of a run, which may wait for it as a standby."""

    process: subprocess.Popen[bytes]  # the supervisor, once it was started
    pipe: IO[bytes]  # what it reads

    def __init__(self, module: str, after: list[str] | None, when_over: Callable[[], object]):
        """Make the run's folder.

        `module` measures; `after` is a command to start in the end; `when_over` is called here,
        once, when the run is seen to have ended.
        """
        self.folder = folders.new_run()
        self.after = after
        self.when_over = when_over
        self.bench = bench_command(module, self.folder)
        self.surroundings = surroundings()
        self.deadline = 0.0  # of a standby
        self.started = False
        self.checked = False

    def fits(self) -> bool:
        """Whether a standby is there, and a cold start now would make the same processes."""
        there = self.process.poll() is None and time.monotonic() < self.deadline
        return there and self.surroundings == surroundings()

    def start(self, idle_s: float | None = None) -> None:
        """Start the supervisor, which starts the others; with `idle_s` as a standby."""
        self.deadline = time.monotonic() + 0.99 * (idle_s or 0.0)  # no race with its own end
        plan = Plan(
            kernel_pid=os.getpid(),
            system=family.this_system(),
            idle_s=idle_s,
            bench=self.bench,
            telemetry=TELEMETRY,
            after=self.after,
        )
        self._write(leftovers.PLAN_NAME, json.dumps(plan))
        code = (
            f"import sys; sys.path[:] = [{ROOT!r}, *filter(None, sys.path)]; "
            f"from labkit.process.supervisor import main; main({str(self.folder)!r})"
        )
        python_path = filter(None, [os.environ.get("PYTHONPATH"), ROOT])
        own = {"LABKIT_HOME": str(folders.home()), "PYTHONPATH": os.pathsep.join(python_path)}
        own["LABKIT_WATCHING"] = ""  # not for `labkit watch`, if this is a script under it
        # Alone on Linux, where it needs the standard library only; elsewhere psutil too
        isolated = ["-I", "-S"] if family.LINUX else []
        with open(self.folder / "supervisor.stderr", "wb", opener=private) as errors:
            self.process = subprocess.Popen(
                [sys.executable, *isolated, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=os.environ | own,  # whole: the dataset may need a key, or the process that logs
                start_new_session=True,
                creationflags=family.OWN_GROUP,
            )
        assert self.process.stdin is not None
        self.pipe = self.process.stdin
        self.started = True

    def begin(self, order: Mapping[str, object], head: dict[str, Any]) -> None:
        """Have the bench do what `order` says; `head` is the log's first event. Raises OSError."""
        (self.folder / RESERVE_NAME).write_bytes(bytes(RESERVE_BYTES))
        log = EventLog(self.folder)
        log.write(**head)
        log.close()
        self._write(SPEC_NAME, json.dumps(order))
        if not self.started:
            self.start()
        else:
            self._say(b"go\n")
        runs.append(self)

    def _write(self, name: str, text: str) -> None:
        with open(self.folder / name, "w", encoding="utf-8", opener=private) as file:
            file.write(text)

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the supervisor is gone
            self.pipe.write(line)
            self.pipe.flush()

    def discard(self) -> None:
        """End a standby, or give up a run that could not be started: nothing of it stays."""
        if not self.started:
            delete_run(self.folder)
        else:
            self.pipe.close()
            runs.append(self)  # until it has ended

    def alive(self) -> bool:
        """Whether the supervisor is there; where it was killed, see to what it left."""
        code = self.process.poll()
        if code is not None and not self.checked:
            self.checked = True
            why = f"the supervisor was killed ({family.exit_name(code)})"
            if code > 0:
                said = (self.folder / "supervisor.stderr").read_text(errors="replace")
                why = f"the supervisor failed: {(said.splitlines() or ['no message'])[-1]}"
            leftovers.wait_for_supervisor(self.folder)  # of the two processes one may be at work
            if code > 0 or (code and (self.folder / leftovers.PLAN_NAME).exists()):
                leftovers.clear_up(self.folder, stop=None, code=None, why=why)
            with contextlib.suppress(OSError):
                self.pipe.close()
            self.when_over()
        return code is None

    def stop(self) -> None:
        """Ask for Stop and wait until the run's last process is gone."""
        self._say(b"stop\n")
        self.join()

    def join(self) -> None:
        """Wait until the supervisor has ended."""
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.alive()


def bench_command(module: str, folder: Path) -> list[str]:
    """Return the command that measures in `folder`; its last argument is the supervisor's pid."""
    return [sys.executable, "-u", "-m", module, str(folder)]


def surroundings() -> tuple:
    """Return what a process inherits from this one, as far as it can change a run."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return dict(os.environ), cores, sys.executable, folders.home()
