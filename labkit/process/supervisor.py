"""The supervisor: stands between the kernel and the bench, and leaves nothing behind.

The kernel talks to it through stdin: "go" hands a standby its run, "stop" asks for Stop, end of
file: it is gone. It is single-threaded, and on Linux of the standard library only: no GIL, driver
or full pipe holds it up. Elsewhere it asks psutil for processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from typing import IO

from labkit.process import family
from labkit.process.events import DRAIN_S, SPEC_NAME, Drain, EventLog, SleepWatch, private
from labkit.process.keys import MASK, keys_in, without_keys

GRACE_S = 1.0  # between asking the bench to stop and killing it
GRACE_WITHOUT_KERNEL_S = 0.2
GONE = "kernel gone"
HEAD_BYTES, TAIL_BYTES = 512 * 1024, 64 * 1024  # kept of what the bench prints

POLL_S = 0.5  # between two looks at the kernel, where a standby waits

PR_SET_CHILD_SUBREAPER = 36  # Linux, prctl(2)


class Output:
    """A file for what a pipe gives: the first half megabyte at once, the last 64 kB later.

    Keys in the environment are masked. What may be the front of one waits for the rest of it.
    """

    def __init__(self, fd: int, path: str):
        self.fd = fd
        os.set_blocking(fd, False)
        self.file = open(path, "wb", buffering=0, opener=private)
        self.room = HEAD_BYTES
        self.tail = bytearray()
        self.left_out = 0
        self.keys = [os.fsencode(key) for key in keys_in(os.environ)]
        self.waiting = b""

    def read(self) -> bytes:
        """Take what is there; b"" where nothing is, or nothing will come."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 65536)
        text = self.waiting + data
        for key in self.keys:
            text = text.replace(key, MASK.encode())
        kept = len(text) - _front_bytes(text, self.keys)
        self.waiting = text[kept:]
        self._keep(text[:kept])
        return data

    def _keep(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk
            self.file.write(data[: self.room])
        self.tail += data[self.room :]
        self.room = max(0, self.room - len(data))
        self.left_out += max(0, len(self.tail) - TAIL_BYTES)
        del self.tail[:-TAIL_BYTES]

    def close(self) -> None:
        """Take the rest, and add the tail behind a line that says how much was left out."""
        while self.read():
            pass
        self._keep(self.waiting)
        note = f"\n... {self.left_out} bytes left out ...\n" if self.left_out else ""
        with contextlib.suppress(OSError):
            self.file.write(note.encode() + self.tail)
        self.file.close()


def _front_bytes(text: bytes, keys: list[bytes]) -> int:
    """Return how many bytes at the end of `text` may be the front of a key."""
    longest = 0
    for key in keys:
        sizes = (size for size in range(len(key) - 1, 0, -1) if text.endswith(key[:size]))
        longest = max(longest, next(sizes, 0))
    return longest


class Supervisor:
    """One run's keeper, from starting the bench to the last process gone."""

    def __init__(self, folder: str):
        self.plan, self.lock = family.plan_of(folder)  # the lock holds while the file is open
        self.folder = folder
        self.bench: subprocess.Popen[bytes] | None = None
        self.code: int | None = None  # that the bench ended with; negative ones are signals
        self.going = self.plan["idle_s"] is None  # else a standby: it waits for its run
        self.cause: str | None = None  # of a stop: "asked", "kernel gone" or "disk full"
        self.kill_at = float("inf")
        self.outputs: list[Output] = []
        self.waiting: list[IO[bytes]] = []  # the stdin of each process that waits for the run
        self.selector = selectors.DefaultSelector()
        self.family: set[int] = set()
        if family.LINUX:
            # become the parent of every descendant whose parent dies, double forks included
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        """Start everything, wait for the end of the run, clean up, write the `end` event."""
        # The kernel's interrupt is not ours. A handler, as an ignored signal would be inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("asked"))
        self._wake_at_a_childs_end()
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._listen)
        why = self._start_all()
        if not self._wait_for_run():
            self._clean_up()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        log = EventLog(self.folder)
        steps = Drain(self.folder, log)
        sleep = SleepWatch(log)
        while self.bench and self.code is None and time.monotonic() < self.kill_at:
            self._react(DRAIN_S)
            steps.drain()
            sleep.look()
            if log.error is not None:
                self.stop("disk full")
        self._clean_up()
        steps.remove()
        if self.cause == "disk full":
            why = f"the event log could not be written: {log.error}"
        how = {"stop": None, "why": why} if why else {"stop": self.cause}
        log.write("end", **how, code=self.code)
        family.remove_tools(self.folder)
        if not log.flush():
            sys.exit(f"labkit: the event log could not be written: {log.error}")
        if self.plan["after"] and self.bench and self.cause != GONE:  # with its service's keys
            path = f"{self.folder}/after.log"
            with contextlib.suppress(OSError), open(path, "wb", opener=private) as out:
                self._popen(self.plan["after"], out, None, subprocess.DEVNULL)

    def _wake_at_a_childs_end(self) -> None:
        """Let the selector return when a child ends: its workers may hold its pipes open."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # Python tells of handled signals only
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))

    def stop(self, cause: str) -> None:
        """Ask the bench to end; it is killed when its grace is over."""
        if self.cause is not None:
            return
        self.cause = cause
        self.kill_at = time.monotonic() + (GRACE_WITHOUT_KERNEL_S if cause == GONE else GRACE_S)
        if self.bench and self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.bench.pid, signal.SIGINT)

    def _start_all(self) -> str | None:
        """Start bench and telemetry; return why that cannot be done, if it cannot."""
        mark = {family.MARK: self.folder}
        stdin = subprocess.DEVNULL if self.going else subprocess.PIPE
        me = str(os.getpid())
        try:
            self.bench = self._popen(
                [*self.plan["bench"], me], subprocess.PIPE, os.environ | mark, stdin
            )
        except OSError as error:
            return f"could not start Python: {error}"
        for name in ("stdout", "stderr"):
            output = Output(getattr(self.bench, name).fileno(), f"{self.folder}/bench.{name}")
            self.outputs.append(output)
            self.selector.register(output.fd, selectors.EVENT_READ, output.read)
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            env = without_keys(os.environ) | mark
            self._popen([*self.plan["telemetry"], me], subprocess.DEVNULL, env, stdin)
        return None

    def _popen(
        self, argv: list[str], out: int | IO[bytes], env: dict[str, str] | None, stdin: int
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=out,
            stderr=out,
            env=env,
            cwd=self.folder,
            start_new_session=True,
        )
        child.returncode = 0  # its status is collected here, by `_collect`, not by Popen
        self.family.add(child.pid)
        if child.stdin is not None:
            self.waiting.append(child.stdin)
        return child

    def _listen(self) -> bytes:
        """Do what the kernel says; b"" where it is gone."""
        data = os.read(sys.stdin.fileno(), 4096)
        if b"go" in data:
            self.going = True
            for pipe in self.waiting:  # they wait for their run's spec: it is there
                with contextlib.suppress(OSError):
                    pipe.write(b"go\n")
                    pipe.close()
        if not data:
            self.stop(GONE)
        elif b"stop" in data:
            self.stop("asked")
        return data

    def _wait_for_run(self) -> bool:
        """Stand by until the kernel hands over a run; return False where none will come."""
        deadline = time.monotonic() + (self.plan["idle_s"] or 0)
        while not self.going and not self.cause and (left := deadline - time.monotonic()) > 0:
            self._react(min(left, POLL_S))
            gone = self.bench is None or self.code is not None
            # With its spec there a run is on its way, and has to end with a word
            if gone and not os.path.exists(os.path.join(self.folder, SPEC_NAME)):
                break
        return self.going

    def _react(self, longest_s: float) -> None:
        """Serve kernel and bench for up to `longest_s`, and see whether they are there."""
        left = min(longest_s, self.kill_at - time.monotonic())
        for key, _ in self.selector.select(max(0.0, left)):
            if not key.data():  # the pipe is closed
                self.selector.unregister(key.fd)
        if not family.exists(self.plan["kernel_pid"]):  # a process it forked may hold its pipe
            self.stop(GONE)
        self._collect()

    def _collect(self) -> None:
        """Reap every dead child, and keep the bench's exit code."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.bench and ended[0] == self.bench.pid:
                    self.code = os.waitstatus_to_exitcode(ended[1])

    def _clean_up(self) -> None:
        """End all that is left of the run, and collect the bench's exit code and last words."""
        self.family |= family.end_all(self.folder, os.getpid())
        deadline = time.monotonic() + 1
        while self.bench and self.code is None and time.monotonic() < deadline:
            # A zombie can be collected only when its last thread is gone
            self._collect()
            time.sleep(0.003)
        family.remove_segments(self.family | family.logged_pids(self.folder, "workers"))
        for output in self.outputs:
            output.close()


def main(folder: str) -> None:
    """Supervise the run in `folder` to its end."""
    Supervisor(folder).run()
