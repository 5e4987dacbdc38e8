"""The supervisor: stands between the kernel and the bench, and leaves nothing behind.

Standard library only and single-threaded: no GIL, driver or full pipe holds it up. The kernel talks
to it through stdin: "go" hands a standby its run, "stop" asks for Stop, end of file: it is gone.
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
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.process import family
from labkit.process.events import DRAIN_S, SPEC_NAME, Drain, EventLog

GRACE_S = 1.0  # between asking the bench to stop and killing it
GRACE_WITHOUT_KERNEL_S = 0.2
GONE = "kernel gone"
HEAD_BYTES, TAIL_BYTES = 512 * 1024, 64 * 1024  # kept of what the bench prints

LINUX = sys.platform == "linux"
PR_SET_CHILD_SUBREAPER = 36  # Linux, prctl(2)


class Output:
    """A file for what a pipe gives: the first half megabyte at once, the last 64 kB later."""

    def __init__(self, fd: int, path: str):
        os.set_blocking(fd, False)
        self.fd, self.room, self.tail, self.left_out = fd, HEAD_BYTES, bytearray(), 0
        self.file = open(path, "wb", buffering=0)

    def read(self) -> bytes:
        """Take what is there; b"" where nothing is, or nothing will come."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 65536)
        with contextlib.suppress(OSError):  # a full disk
            self.file.write(data[: self.room])
        self.tail += data[self.room :]
        self.room = max(0, self.room - len(data))
        self.left_out += max(0, len(self.tail) - TAIL_BYTES)
        del self.tail[:-TAIL_BYTES]
        return data

    def close(self) -> None:
        """Take the rest, and add the tail behind a line that says how much was left out."""
        while self.read():
            pass
        note = f"\n... {self.left_out} bytes left out ...\n" if self.left_out else ""
        with contextlib.suppress(OSError):
            self.file.write(note.encode() + self.tail)
        self.file.close()


class Supervisor:
    """One run's keeper, from starting the bench to the last process gone."""

    def __init__(self, folder: str):
        self.plan, self.lock = family.plan_of(folder)
        self.folder = folder
        self.bench: subprocess.Popen | None = None
        self.status: int | None = None  # the bench's wait status
        self.going = self.plan["idle_s"] is None  # else a standby: it waits for its run
        self.cause: str | None = None  # of a stop: "asked", "kernel gone" or "disk full"
        self.kill_at = float("inf")
        self.family: set[int] = set()
        self.selector = selectors.DefaultSelector()
        self.outputs: list[Output] = []
        self.waiting: list = []  # the stdin of each process that waits for the run

    def run(self) -> None:
        """Start everything, wait for the end of the run, clean up, write the `end` event."""
        # The kernel's interrupt is not ours. A handler, as an ignored signal would be inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("asked"))
        if LINUX:
            # become the parent of every descendant whose parent dies, double forks included
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._watch(sys.stdin.fileno(), self._listen)
        self._watch_pid(self.plan["kernel_pid"], lambda: self.stop(GONE))
        why = self._start_all()
        if not self._wait_for_run():
            self._clean_up()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        log = EventLog(self.folder)
        steps = Drain(self.folder, log)
        while self.bench and self.status is None and time.monotonic() < self.kill_at:
            self._react(DRAIN_S)
            steps.drain()
            if log.error is not None:
                self.stop("disk full")
        self._clean_up()
        steps.remove()
        if self.cause == "disk full":
            why = f"the event log could not be written: {log.error}"
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        log.write("end", **({"stop": None, "why": why} if why else {"stop": self.cause}), code=code)
        family.remove_tools(self.folder)
        if not log.flush():
            sys.exit(f"labkit: the event log could not be written: {log.error}")
        if self.plan["after"] and self.bench and self.cause != GONE:  # with its service's keys
            with contextlib.suppress(OSError), open(f"{self.folder}/after.log", "wb") as out:
                self._popen(self.plan["after"], out, None, subprocess.DEVNULL)

    def stop(self, cause: str) -> None:
        """Ask the bench to end; it is killed when its grace is over."""
        if self.cause is not None:
            return
        self.cause = cause
        self.kill_at = time.monotonic() + (GRACE_WITHOUT_KERNEL_S if cause == GONE else GRACE_S)
        if self.bench and self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.bench.pid, signal.SIGINT)

    def _start_all(self) -> str | None:
        """Start bench and telemetry; return why that cannot be done, if it cannot."""
        env = family.without_keys(os.environ) | {family.MARK: self.folder}
        stdin = subprocess.DEVNULL if self.going else subprocess.PIPE
        me = str(os.getpid())
        try:
            self.bench = self._popen([*self.plan["bench"], me], subprocess.PIPE, env, stdin)
        except OSError as error:
            return f"could not start Python: {error}"
        for name in ("stdout", "stderr"):
            path = f"{self.folder}/bench.{name}"
            self.outputs.append(output := Output(getattr(self.bench, name).fileno(), path))
            # nothing to be read: the pipe is closed
            self._watch(output.fd, lambda o=output: o.read() or self.selector.unregister(o.fd))
        self._watch_pid(self.bench.pid, lambda: None)
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            self._popen([*self.plan["telemetry"], me], subprocess.DEVNULL, env, stdin)
        return None

    def _popen(self, argv: list[str], out: Any, env: dict | None, stdin: int) -> subprocess.Popen:
        child = subprocess.Popen(
            argv, stdin=stdin, stdout=out, stderr=out, env=env, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        child.returncode = 0  # its status is collected here, by `reap`, not by Popen
        self.family.add(child.pid)
        if child.stdin is not None:
            self.waiting.append(child.stdin)
        return child

    def _watch(self, fd: int, react: Callable[[], Any]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, react)

    def _watch_pid(self, pid: int, react: Callable[[], Any]) -> None:
        """Have `react` called when the process ends (elsewhere than on Linux it is polled)."""
        if LINUX:
            try:
                self._watch(os.pidfd_open(pid), react)
            except ProcessLookupError:
                react()

    def _listen(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if b"go" in data:
            self.going = True
            for pipe in self.waiting:  # they wait for their run's spec: it is there
                with contextlib.suppress(OSError):
                    pipe.write(b"go\n")
                    pipe.close()
        if not data:
            self.selector.unregister(sys.stdin.fileno())
            self.stop(GONE)
        elif b"stop" in data:
            self.stop("asked")

    def _react(self, longest_s: float) -> None:
        """Serve stdin, output and the ends of kernel and bench for up to `longest_s`."""
        left = min(longest_s, self.kill_at - time.monotonic())
        for key, _ in self.selector.select(max(0.0, left)):
            key.data()
        if not LINUX and os.getppid() != self.plan["kernel_pid"]:
            self.stop(GONE)
        if self.bench and self.status is None:
            self.status = family.reap().get(self.bench.pid)

    def _wait_for_run(self) -> bool:
        """Stand by until the kernel hands over a run; return False where none will come."""
        deadline = time.monotonic() + (self.plan["idle_s"] or 0)
        while not self.going and not self.cause and (left := deadline - time.monotonic()) > 0:
            self._react(left if LINUX else min(left, 0.5))
            gone = self.bench is None or self.status is not None
            # With its spec there a run is on its way, and has to end with a word
            if gone and not os.path.exists(os.path.join(self.folder, SPEC_NAME)):
                break
        return self.going

    def _clean_up(self) -> None:
        """End all that is left of the run, and collect the bench's status and last words."""
        statuses = family.end_all(os.getpid(), self.family) if LINUX else {}
        for pid in () if LINUX else self.family:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + 1
        while self.bench and self.status is None and time.monotonic() < deadline:
            # A zombie can be collected only when its last thread is gone
            statuses |= family.reap()
            self.status = statuses.get(self.bench.pid)
            time.sleep(0.003)
        family.remove_segments(self.family | family.logged_pids(self.folder, "workers"))
        for output in self.outputs:
            output.close()


def supervise_on_windows(folder: str) -> None:
    """Do the same on Windows, where we have not run it; psutil ends what is left."""
    import psutil

    plan, lock = family.plan_of(folder)
    log, cause, kill_at = EventLog(folder), [], float("inf")
    env, none = family.without_keys(os.environ) | {family.MARK: folder}, subprocess.DEVNULL
    steps, started, group = Drain(folder, log), [], subprocess.CREATE_NEW_PROCESS_GROUP

    def listen() -> None:
        cause.append("asked" if "stop" in sys.stdin.readline() else GONE)

    threading.Thread(target=listen, daemon=True).start()
    for name in ("bench", "telemetry"):
        with open(os.path.join(folder, f"{name}.stderr"), "wb") as out:
            command = [*plan[name], str(os.getpid())]
            started.append(subprocess.Popen(command, stdin=none, stdout=out, stderr=out,
                                            cwd=folder, env=env, creationflags=group))  # fmt: skip
    while (code := started[0].poll()) is None and time.monotonic() < kill_at:
        time.sleep(DRAIN_S)
        if cause and kill_at == float("inf"):
            started[0].send_signal(signal.CTRL_BREAK_EVENT)
            kill_at = time.monotonic() + GRACE_S
        steps.drain()
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for pid in below | family.logged_pids(folder, "workers"):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            process.wait(1)
    steps.remove()
    log.write("end", stop=cause[0] if cause else None, code=code)
    lock.close()  # Windows removes no open file
    family.remove_tools(folder)
    if plan["after"] and cause != [GONE]:
        subprocess.Popen(plan["after"], cwd=folder, stdin=none)


def main(folder: str) -> None:
    """Supervise the run in `folder` to its end."""
    if sys.platform == "win32":
        supervise_on_windows(folder)
    else:
        Supervisor(folder).run()
