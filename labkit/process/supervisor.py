"""The supervisor: stands between the kernel and the bench, and leaves nothing behind.

The kernel talks to it through stdin: "go" has a standby begin its run, "stop" asks for Stop, end of
file: it is gone. It is single-threaded: no GIL, driver or full pipe holds it up. On Linux it is of
the standard library only, and sleeps until a pipe has news; elsewhere it looks at them in turn, and
asks psutil for processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from labkit.process import family, leftovers
from labkit.process.leftovers import ASKED, DISK_FULL, GONE, UNGUARDED, delete_run
from labkit.stamps.events import SPEC_NAME, EventLog, private
from labkit.stamps.keys import mask_secrets, secrets_in
from labkit.stamps.step_ring import DRAIN_S, Drain

GRACE_S = 1.0  # between asking the bench to stop and killing it
GRACE_WITHOUT_KERNEL_S = 0.2
MOST_OUTPUT = 512 * 1024  # bytes kept of what the bench prints: its end


def read_now(fd: int) -> bytes | None:
    """Return what a pipe holds; None where it is empty now, b"" where nothing will come."""
    with contextlib.suppress(OSError):
        return os.read(fd, 65536)
    return None


class Output:
    """What the bench prints, to be written into a file once its end is known."""

    def __init__(self, fd: int, path: str):
        self.fd = fd
        self.path = path
        self.data = bytearray()  # the end of it

    def read(self) -> bytes | None:
        """Take what is there, and return it; as `read_now` does."""
        data = read_now(self.fd)
        self.data += data or b""
        del self.data[:-MOST_OUTPUT]
        return data

    def finish(self) -> None:
        """Take what is left, and write the file without secrets; it says if some is left out."""
        while self.read():
            pass
        text = self.data.decode(errors="surrogateescape")
        if len(self.data) == MOST_OUTPUT:  # whole lines: a part of a secret is not known for one
            _, _, whole = text.partition("\n")
            text = f"... more was left out ...\n{whole}"
        text = mask_secrets(text, secrets_in(os.environ))
        with contextlib.suppress(OSError), open(self.path, "wb", opener=private) as file:
            file.write(text.encode(errors="surrogateescape"))  # but on a full disk


class Supervisor:
    """One run's keeper, from starting the bench to the last process gone."""

    def __init__(self, folder: str):
        self.plan, self.lock = leftovers.plan_of(folder)
        self.folder = folder
        self.bench: subprocess.Popen | None = None
        self.code: int | None = None  # that the bench ended with; negative ones are signals
        self.going = self.plan["idle_s"] is None  # else a standby: it waits for its run
        self.cause: str | None = None  # of a stop: one of those in `leftovers`
        self.kill_at = float("inf")
        self.output: Output | None = None  # what the bench prints
        self.pipes: dict[int, Callable[[], bytes | None]] = {}  # {file: what reads what is there}
        self.waiting: list = []  # the stdin of each process that waits for the run
        self.family: set[int] = set()

    def run(self) -> None:
        """Start everything, wait for the end of the run, clean up, write the `end` event."""
        # The kernel's interrupt is not ours. A handler, as an ignored signal would be inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop(ASKED))
        if family.LINUX:
            signal.signal(signal.SIGHUP, lambda *_: self._lose_guard())
            family.adopt_orphans()
        self._follow(sys.stdin.fileno(), self._listen)
        why = self._start_all()
        if not self._wait_for_run():
            self._clean_up()
            delete_run(Path(self.folder))
            return
        log = EventLog(self.folder)
        steps = Drain(self.folder, log)
        while self.bench and self.code is None and time.monotonic() < self.kill_at:
            self._react(DRAIN_S)
            steps.drain()
            if log.error is not None:
                self.stop(DISK_FULL)
        self._clean_up()
        steps.remove()
        if self.cause == DISK_FULL:
            why = f"the event log could not be written: {log.error}"
        elif self.cause == UNGUARDED:
            why = UNGUARDED
        log.write("end", stop=None if why else self.cause, why=why, code=self.code)
        leftovers.remove_tools(self.folder)

    def stop(self, cause: str) -> None:
        """Ask the bench to end; it is killed when its grace is over."""
        if self.cause is not None:
            return
        self.cause = cause
        grace_s = GRACE_WITHOUT_KERNEL_S if cause == GONE else GRACE_S
        self.kill_at = time.monotonic() + grace_s
        if self.bench and self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.bench.pid, signal.SIGINT)

    def _start_all(self) -> str | None:
        """Start bench and telemetry; return why that cannot be done, if it cannot."""
        mark = {family.MARK: self.folder}
        stdin = subprocess.DEVNULL if self.going else subprocess.PIPE
        me = str(os.getpid())
        try:
            bench = [*self.plan["bench"], me]
            self.bench = self._popen(bench, subprocess.PIPE, os.environ | mark, stdin)
        except OSError as error:
            return f"could not start Python: {error}"
        assert self.bench.stdout is not None
        self.output = Output(self.bench.stdout.fileno(), f"{self.folder}/bench.stderr")
        self._follow(self.output.fd, self.output.read)
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            telemetry = [*self.plan["telemetry"], me]
            self._popen(telemetry, subprocess.DEVNULL, os.environ | mark, stdin)
        return None

    def _popen(
        self, argv: list[str], out: int, env: dict[str, str], stdin: int
    ) -> subprocess.Popen:
        child = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=self.folder,
            start_new_session=True,
        )
        self.family.add(child.pid)
        if family.LINUX:
            child.returncode = 0  # its status is collected here, by `reap`, not by Popen
        if child.stdin is not None:
            self.waiting.append(child.stdin)
        return child

    def _wait_for_run(self) -> bool:
        """Stand by until the kernel has a run; return False where none will come."""
        deadline = time.monotonic() + (self.plan["idle_s"] or 0)
        while not self.going and not self.cause and (left := deadline - time.monotonic()) > 0:
            self._react(min(left, 1.0))
            gone = self.bench is None or self.code is not None
            # With its spec there a run is on its way, and has to end with a word
            if gone and not os.path.exists(os.path.join(self.folder, SPEC_NAME)):
                break
        return self.going

    def _lose_guard(self) -> None:
        """End the run; where kernel and guard were killed together, it ends for the kernel."""
        self.stop(UNGUARDED if family.exists(self.plan["kernel_pid"]) else GONE)

    def _follow(self, fd: int, read: Callable[[], bytes | None]) -> None:
        """Have `read` called where a pipe has news, until it is closed."""
        os.set_blocking(fd, False)
        self.pipes[fd] = read

    def _listen(self) -> bytes | None:
        """Do what the kernel says; b"" where it is gone."""
        data = read_now(sys.stdin.fileno())
        said = data or b""
        if b"go" in said:
            self.going = True
            for pipe in self.waiting:  # they wait for their run's spec: it is there
                with contextlib.suppress(OSError):
                    pipe.write(b"go\n")
                    pipe.close()
        if data == b"":
            self.stop(GONE)
        elif b"stop" in said:
            self.stop(ASKED)
        return data

    def _react(self, longest_s: float) -> None:
        """Serve the kernel, and see whether it and the bench are there, for up to `longest_s`."""
        left = max(0.0, min(longest_s, self.kill_at - time.monotonic()))
        news = list(self.pipes)
        if family.LINUX:
            news, _, _ = select.select(news, [], [], left)
        else:
            time.sleep(min(left, DRAIN_S))
        for fd in news:
            if self.pipes[fd]() == b"":
                del self.pipes[fd]
        if not family.exists(self.plan["kernel_pid"]):
            self.stop(GONE)
        self._collect(family.reap())

    def _collect(self, statuses: dict[int, int]) -> None:
        """Keep the bench's exit code, where it has ended: its wait status is among these."""
        if self.bench and self.code is None:
            if not family.LINUX:
                self.code = self.bench.poll()
            elif self.bench.pid in statuses:
                self.code = os.waitstatus_to_exitcode(statuses[self.bench.pid])

    def _clean_up(self) -> None:
        """End all that is left of the run, and collect the bench's exit code and last words."""
        if family.LINUX:
            self._collect(family.end_all(os.getpid(), self.family))
        else:
            family.end_marked(self.folder, self.family)
        deadline = time.monotonic() + 1
        while self.bench and self.code is None and time.monotonic() < deadline:
            # A zombie can be collected only when its last thread is gone
            self._collect(family.reap())
            time.sleep(0.003)
        leftovers.remove_segments(self.family | leftovers.logged_pids(self.folder, "workers"))
        if self.output:
            self.output.finish()


def main(folder: str) -> None:
    """Supervise the run in `folder` to its end."""
    if family.LINUX:
        family.go_on_guarded()
    Supervisor(folder).run()
