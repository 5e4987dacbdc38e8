"""Starting runs apart from the kernel, warm where a standby fits, else cold.

**Standby.** A cold start takes over a second, nearly all of it importing torch. So an interactive
kernel that asks for its machine or shows a panel, and when a run of its has ended, starts the
processes of the next one, which import torch, touch no device and wait ten minutes.
`LABKIT_WARM=0` switches this off, `LABKIT_WARM=1` on, also in scripts.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from labkit import quotas
from labkit.orders import Order
from labkit.process import family, folders, leftovers
from labkit.stamps.events import SPEC_NAME, EventLog, private
from labkit.stamps.folder_rights import is_locked

IDLE_S = 600.0  # how long a standby waits for a run
JOIN_S = 6.5  # to stop: the grace (1 s), `family._end` (3.5 s), the bench's exit code (1 s)
ROOT = str(Path(__file__).parents[2])  # where the package `labkit` is

runs: list[Handle] = []  # a handle that is collected would close the pipe and end its run
_standby: Handle | None = None
_choosing = threading.Lock()  # held while a run or a standby is being started


class Handle:
    """The kernel's handle on the supervisor of a run, which may wait for it as a standby."""

    process: subprocess.Popen[bytes] | None = None  # the supervisor, once it was started
    pipe: IO[bytes]  # what it reads
    deadline = 0.0  # of a standby
    is_cleared = False  # whether what a killed supervisor left has been seen to

    def __init__(self) -> None:
        """Make the run's folder."""
        self.folder = folders.new_run()
        self.surroundings = surroundings()
        python = [sys.executable, "-u", "-m"]
        self.plan = Order(
            kernel_pid=os.getpid(),
            system=family.this_system(),
            bench=[*python, "labkit.bench", str(self.folder)],
            telemetry=[*python, "labkit.instruments.telemetry"],
        )

    def start(self, idle_s: float | None = None) -> None:
        """Start the supervisor, which starts the others; with `idle_s` as a standby."""
        self.deadline = time.monotonic() + 0.99 * (idle_s or 0.0)  # no race with its own end
        self._write(leftovers.PLAN_NAME, self.plan | {"idle_s": idle_s})
        code = (
            f"import sys; sys.path[:] = [{ROOT!r}, *filter(None, sys.path)]; "
            f"from labkit.process.supervisor import main; main({str(self.folder)!r})"
        )
        own = {
            "LABKIT_HOME": str(folders.home()),
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), ROOT])),
            "LABKIT_WATCHING": "",  # not for `labkit watch`, if this is a script under it
        }
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
            )
        assert self.process.stdin is not None
        self.pipe = self.process.stdin

    def begin(self, order: Mapping[str, object], head: dict[str, Any]) -> None:
        """Have the bench do what `order` says; `head` is the log's first event. Raises OSError."""
        EventLog(self.folder).write(**head)
        self._write(SPEC_NAME, order)
        if self.process is None:
            self.start()
        else:
            self._say(b"go\n")
        runs.append(self)

    def _write(self, name: str, said: Mapping[str, object]) -> None:
        with open(self.folder / name, "w", encoding="utf-8", opener=private) as file:
            json.dump(said, file)

    def _say(self, line: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the supervisor is gone
            self.pipe.write(line)
            self.pipe.flush()

    def discard(self) -> None:
        """End a standby, or give up a run that could not be started: nothing of it stays."""
        if self.process is None:
            leftovers.delete_run(self.folder)
        else:
            self.pipe.close()
            runs.append(self)  # until it has ended
            self.clear_up()

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor is there."""
        return self.process is not None and self.process.poll() is None

    def clear_up(self) -> None:
        """See once to what the supervisor left, where it was killed; then have a standby.

        While it is there nothing happens.
        """
        if self.process is None or self.is_alive or self.is_cleared:
            return
        self.is_cleared = True
        leftovers.wait_for_supervisor(self.folder)  # of the two processes one may be at work
        code = self.process.returncode
        if code > 0 or (code and (self.folder / leftovers.PLAN_NAME).exists()):
            said = (self.folder / "supervisor.stderr").read_text(errors="replace").splitlines()
            how = f"failed: {said[-1]}" if said else f"was killed ({family.exit_name(code)})"
            leftovers.clear_up(self.folder, stop=None, code=None, why=f"the supervisor {how}")
        with contextlib.suppress(OSError):
            self.pipe.close()
        stand_by()

    def fits(self) -> bool:
        """Whether a standby is there, and would run as what is started now."""
        in_time = time.monotonic() < self.deadline
        return in_time and self.surroundings == surroundings() and self.is_alive

    def stop(self) -> None:
        """Ask for Stop and wait until the run's last process is gone."""
        self._say(b"stop\n")
        self.join()

    def join(self) -> None:
        """Wait until the supervisor has ended, and what it left is seen to."""
        assert self.process is not None
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.clear_up()


def surroundings() -> tuple:
    """Return what a process inherits from this one, as far as it can change a run."""
    return dict(os.environ), quotas.cpu_cores()


@contextlib.contextmanager
def starting() -> Iterator[Handle]:
    """Give a handle to begin a run with: the standby where it fits, else one that is cold."""
    with _choosing:
        for handle in [handle for handle in runs if not handle.is_alive]:
            handle.clear_up()
            runs.remove(handle)
        leftovers.clear(folders.home() / "runs")
        handle = _take_standby()
        if handle and not handle.fits():
            handle.discard()  # its import would disturb the run that starts now
            handle = None
        handle = handle or Handle()
        try:
            yield handle
        except BaseException:
            handle.discard()
            raise


def stand_by(idle_s: float = IDLE_S, forced: bool = False) -> None:
    """Start the processes of the next run, where nothing is being measured.

    Unless `forced`, only where this process may have one soon: a notebook's kernel, a prompt.
    """
    global _standby
    wanted = os.environ.get("LABKIT_WARM") or str(int(forced or hasattr(sys, "ps1")))
    if wanted != "1" or not _choosing.acquire(blocking=False):
        return
    try:
        going = any(handle.is_alive for handle in runs)
        locks = folders.part("locks").glob("*.lock")  # of devices, which any kernel's run may have
        if not (going or _standby or any(map(is_locked, locks))):
            standby = Handle()
            standby.start(idle_s)
            _standby = standby
    except OSError:
        pass  # the next run will tell
    finally:
        _choosing.release()


def end_standby() -> None:
    """End the standby, if there is one: what is measured in the kernel wants to be alone."""
    with _choosing:
        if standby := _take_standby():
            standby.discard()
            standby.join()


def _take_standby() -> Handle | None:
    """Return the standby, which from now on is none."""
    global _standby
    standby, _standby = _standby, None
    return standby
