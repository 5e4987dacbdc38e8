"""Starting a run apart from the kernel: its folder, its supervisor, and the handle on both.

**Standby.** A cold start takes over a second, nearly all of it importing torch. So when a run has
ended, an interactive kernel starts the processes of the next one, which import torch, touch no
device and wait ten minutes. `LABKIT_WARM=0` switches this off, `LABKIT_WARM=1` on, also in scripts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from labkit.orders import Plan
from labkit.process import device_lock, family, folders, leftovers
from labkit.process.events import RESERVE_BYTES, RESERVE_NAME, SPEC_NAME, EventLog, private

BENCH = "labkit.bench"
RANKS = "labkit.bench.torchrun_launcher"
TELEMETRY = [sys.executable, "-m", "labkit.bench.telemetry"]
JOIN_S = 5.0  # the supervisor is gone 2 s after a forced stop at the latest
IDLE_S = 600.0  # how long a standby waits for a run
ROOT = str(Path(__file__).parents[2])  # where the package `labkit` is

runs: list[Handle] = []  # a handle that is collected would close the pipe and end its run
_standby: Handle | None = None
_choosing = threading.Lock()  # held while a run or a standby is being started


class Handle:
    """The kernel's handle on a run's supervisor, or on a standby's."""

    process: subprocess.Popen[bytes]  # the supervisor, once it was started

    def __init__(self, module: str = BENCH, after: list[str] | None = None):
        """Make the run's folder. `module` measures; `after` is a command to start in the end."""
        self.folder = folders.new_run()
        self.after = after
        self.bench = bench_command(module, self.folder)
        self.started = False
        self.checked = False

    @property
    def _pipe(self) -> IO[bytes]:
        """What the supervisor reads."""
        assert self.process.stdin is not None  # `start` asks for a pipe
        return self.process.stdin

    def start(self, idle_s: float | None = None) -> None:
        """Start the supervisor, which starts the others; with `idle_s` as a standby."""
        if idle_s is not None:
            self.surroundings = surroundings()
            self.deadline = time.monotonic() + 0.99 * idle_s  # no race with its own end
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
            self._pipe.write(line)
            self._pipe.flush()

    def discard(self) -> None:
        """End a standby, or give up a run that could not be started: nothing of it stays."""
        if not self.started:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._pipe.close()
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
            if code:
                leftovers.clear_up(self.folder, stop=None, code=None, why=why)
            with contextlib.suppress(OSError):
                self._pipe.close()
            stand_by()
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


@contextlib.contextmanager
def starting(module: str, after: list[str] | None) -> Iterator[Handle]:
    """Give a handle to begin a run with: the standby where it fits, else one that is cold."""
    global _standby
    with _choosing:
        runs[:] = [handle for handle in runs if handle.alive()]
        leftovers.clear(folders.home() / "runs")
        handle = _standby
        _standby = None
        if not (handle and module == BENCH and after is None and fits(handle)):
            if handle:
                handle.discard()  # its import would disturb the run that starts now
            handle = Handle(module, after)
        try:
            yield handle
        except BaseException:
            handle.discard()
            raise


def stand_by(idle_s: float = IDLE_S, forced: bool = False) -> None:
    """Start the processes of the next run, where it is `wanted` and nothing is being measured."""
    global _standby
    if not (forced or wanted()) or not _choosing.acquire(blocking=False):
        return
    with contextlib.ExitStack() as undo, contextlib.suppress(OSError):  # the next run will tell
        undo.callback(_choosing.release)
        going = any(handle.process.poll() is None for handle in runs)
        if not (going or _standby or device_lock.any_held(folders.home() / "locks")):
            handle = Handle()
            undo.callback(lambda: handle is _standby or handle.discard())
            handle.start(idle_s)
            _standby = handle


def end_standby() -> None:
    """End the standby, if there is one: what is measured in the kernel wants to be alone."""
    global _standby
    with _choosing:
        handle = _standby
        _standby = None
        if handle is not None:
            handle.discard()
            handle.process.wait(JOIN_S)


def wanted() -> bool:
    """Whether this process may have another run soon: a notebook's kernel, a Python prompt."""
    said = os.environ.get("LABKIT_WARM", "")
    return said != "0" and (said == "1" or hasattr(sys, "ps1"))


def fits(standby: Handle) -> bool:
    """Whether it is there, and a cold start now would make the same processes."""
    there = standby.process.poll() is None and time.monotonic() < standby.deadline
    return there and standby.surroundings == surroundings()


def surroundings() -> tuple:
    """Return what a process inherits from this one, as far as it can change a run."""
    limits = []
    with contextlib.suppress(ImportError):  # Windows
        import resource

        limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return dict(os.environ), limits, cores, sys.executable, folders.home()
