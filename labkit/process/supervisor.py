"""The supervisor: stands between the kernel and the bench, and leaves nothing behind.

Standard library only and single-threaded, so that it starts in 0.04 s, needs 12 MB and cannot be
held up by a GIL, a driver or a full pipe. It starts the bench and the telemetry, writes the steps
the bench has done, passes on Stop, keeps what they print (capped), and writes how the run ended
once every descendant is gone.

The kernel talks to it through stdin: a line "go" hands a standby its run, "stop" asks for Stop, end
of file means that the kernel is gone. `labkit.process.launcher` starts it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time

from labkit.process import family, leftovers, step_log
from labkit.process.events import SPEC_NAME, EventLog

GRACE_S = 1.0  # between asking the bench to stop and killing it
GRACE_WITHOUT_KERNEL_S = 0.2
HEAD_BYTES, TAIL_BYTES = 512 * 1024, 64 * 1024  # kept of what a process prints

LINUX = sys.platform == "linux"


class CappedFile:
    """Keeps the first half megabyte of a stream as it comes, and its last 64 kB at the end."""

    def __init__(self, path: str):
        try:
            self.file = open(path, "wb", buffering=0)
        except OSError:  # the run is worth more than what it prints
            self.file = open(os.devnull, "wb", buffering=0)
        self.room, self.tail, self.dropped = HEAD_BYTES, b"", 0

    def write(self, data: bytes) -> None:
        """Append `data`; never raises, so that a full disk cannot end a run."""
        head, rest = data[: self.room], data[self.room :]
        with contextlib.suppress(OSError):
            self.file.write(head)
        self.room -= len(head)
        self.dropped += len(rest)
        self.tail = (self.tail + rest)[-TAIL_BYTES:]

    def close(self) -> None:
        """Append the tail, after a line that says how much was left out."""
        with contextlib.suppress(OSError):
            left_out = self.dropped - len(self.tail)
            if left_out > 0:
                self.file.write(f"\n... {left_out} bytes left out ...\n".encode())
            self.file.write(self.tail)
            self.file.close()


class Supervisor:
    """One run's keeper, from starting the bench to the last process gone."""

    def __init__(self, folder: str):
        self.plan, self.lock = leftovers.plan_of(folder)
        self.folder = folder
        self.bench: subprocess.Popen | None = None
        self.going = self.plan["idle_s"] is None  # else a standby: it waits for its run
        self.stop_cause: str | None = None  # "asked", "kernel gone" or "disk full"
        self.kill_at = float("inf")
        self.status: int | None = None  # the bench's wait status
        self.family: set[int] = set()
        self.selector = selectors.DefaultSelector()
        self.outputs: list[tuple[int, CappedFile]] = []
        self.waiting: list = []  # the stdin of each process that waits for the run

    def run(self) -> None:
        """Start everything, wait for the end of the run, clean up, write the `end` event."""
        # The kernel's interrupt is not ours. A handler, as an ignored signal would be inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("asked"))
        if LINUX:
            family.adopt_orphans()
        self._watch(sys.stdin.fileno(), self._on_stdin)
        self._watch_pid(self.plan["kernel_pid"], lambda: self.stop("kernel gone"))
        why = self._start_all()
        if not self._wait_for_run():
            self._clean_up()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        log = EventLog(self.folder)
        if why:
            log.write("end", stop=None, code=None, why=why)
            leftovers.remove_tools(self.folder)
            return
        steps = step_log.Drain(self.folder, log)
        self._wait(log, steps)
        self._clean_up()
        steps.remove()
        self._write_end(log)
        leftovers.remove_tools(self.folder)
        if not log.flush():
            sys.exit(f"labkit: the event log could not be written: {log.error}")
        if self.stop_cause != "kernel gone" and self.plan["after"]:
            with (
                contextlib.suppress(OSError),
                open(os.path.join(self.folder, "after.log"), "wb") as out,
            ):  # on its own, and with the keys of its service
                self._popen(self.plan["after"], out, None, stdin=subprocess.DEVNULL)

    def _write_end(self, log: EventLog) -> None:
        code = os.waitstatus_to_exitcode(self.status) if self.status is not None else None
        if self.stop_cause == "disk full":
            why = f"the event log could not be written: {log.error}"
            log.write("end", stop=None, code=code, why=why)
        else:
            log.write("end", stop=self.stop_cause, code=code)

    def stop(self, cause: str) -> None:
        """Ask the bench to end; it is killed when its grace is over."""
        if self.stop_cause is None:
            self.stop_cause = cause
            grace = GRACE_WITHOUT_KERNEL_S if cause == "kernel gone" else GRACE_S
            self.kill_at = time.monotonic() + grace
            if self.bench is not None and self.status is None:
                with contextlib.suppress(OSError):
                    os.kill(self.bench.pid, signal.SIGINT)

    def _start_all(self) -> str | None:
        """Start bench and telemetry; return why that cannot be done, if it cannot."""
        env = family.without_keys(os.environ) | {family.MARK: self.folder}
        try:
            self.bench = self._start(self.plan["bench"], env, keep_as="bench")
        except OSError as error:
            return f"could not start Python: {error}"
        self._watch_pid(self.bench.pid, lambda: None)
        if self.plan["telemetry"]:
            with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
                self._start(self.plan["telemetry"], env)
        return None

    def _start(self, argv: list[str], env: dict, keep_as: str | None = None) -> subprocess.Popen:
        stdin = subprocess.DEVNULL if self.going else subprocess.PIPE
        out = subprocess.PIPE if keep_as else subprocess.DEVNULL
        child = self._popen([*argv, str(os.getpid())], out, env, stdin)
        self.family.add(child.pid)
        if child.stdin is not None:
            self.waiting.append(child.stdin)
        for stream, kind in ((child.stdout, "stdout"), (child.stderr, "stderr")):
            if stream is not None:
                fd = stream.fileno()
                kept = CappedFile(os.path.join(self.folder, f"{keep_as}.{kind}"))
                os.set_blocking(fd, False)
                self.outputs.append((fd, kept))
                self._watch(fd, functools.partial(self._copy, fd, kept))
        return child

    def _popen(self, argv: list[str], out, env: dict | None, stdin: int) -> subprocess.Popen:
        child = subprocess.Popen(
            argv, stdin=stdin, stdout=out, stderr=out, env=env, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        child.returncode = 0  # its status is collected here, by `reap`, not by Popen
        return child

    def _watch(self, fd: int, react) -> None:
        self.selector.register(fd, selectors.EVENT_READ, react)

    def _watch_pid(self, pid: int, react) -> None:
        if LINUX:
            try:
                self._watch(os.pidfd_open(pid), react)
            except ProcessLookupError:
                react()

    def _on_stdin(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if b"go" in data:
            self._go()
        if not data:
            self.selector.unregister(sys.stdin.fileno())
            self.stop("kernel gone")
        elif b"stop" in data:
            self.stop("asked")

    def _go(self) -> None:
        """Tell the processes that wait that their run's spec is there."""
        self.going = True
        for pipe in self.waiting:
            with contextlib.suppress(OSError):
                pipe.write(b"go\n")
                pipe.close()

    def _copy(self, fd: int, kept: CappedFile) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 65536):
                kept.write(data)
                if len(data) < 65536:
                    return
            with contextlib.suppress(KeyError):  # it may have ended before
                self.selector.unregister(fd)

    def _react(self, longest_s: float) -> None:
        """Serve stdin, output and the ends of kernel and bench for up to `longest_s`."""
        left = min(longest_s, self.kill_at - time.monotonic())
        for key, _ in self.selector.select(max(0.0, left)):
            key.data()
        if not LINUX and os.getppid() != self.plan["kernel_pid"]:
            self.stop("kernel gone")
        if self.bench is not None and self.status is None:
            self.status = family.reap().get(self.bench.pid)

    def _wait_for_run(self) -> bool:
        """Stand by until the kernel hands over a run; return False where none will come."""
        deadline = time.monotonic() + (self.plan["idle_s"] or 0)
        while not self.going:
            left = deadline - time.monotonic()
            self._react(left if LINUX else min(left, 0.5))
            dead = self.bench is None or self.status is not None
            if dead and os.path.exists(os.path.join(self.folder, SPEC_NAME)):
                continue  # the run is on its way: it has to end with a word
            if dead or self.stop_cause or left <= 0:
                return self.going
        return True

    def _wait(self, log: EventLog, steps: step_log.Drain) -> None:
        """Write the steps until the bench is gone or its grace is over."""
        while self.status is None and time.monotonic() < self.kill_at:
            self._react(step_log.DRAIN_S)
            steps.drain()
            if log.error is not None:
                self.stop("disk full")

    def _clean_up(self) -> None:
        if self.bench is None:
            return
        if LINUX:
            self._kill_family()
        else:
            for pid in self.family:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            deadline = time.monotonic() + 1
            while self.status is None and time.monotonic() < deadline:
                self.status = family.reap().get(self.bench.pid)
                time.sleep(0.005)
        for fd, kept in self.outputs:
            with contextlib.suppress(OSError):
                self._copy(fd, kept)
            kept.close()

    def _kill_family(self) -> None:
        statuses = family.end_all(os.getpid(), self.family)
        deadline = time.monotonic() + 0.5
        while self.status is None:  # a zombie can be collected only when its last thread is gone
            self.status = statuses.get(self.bench.pid)
            if self.status is not None or time.monotonic() > deadline:
                break
            time.sleep(0.003)
            statuses |= family.reap()
        family.remove_segments(self.family | family.logged_workers(self.folder))


def supervise_on_windows(folder: str) -> None:
    """Do the same on Windows, without standbys; what is left in the end psutil kills.

    Not run on the project's test machines, which have no Windows.
    """
    import psutil

    plan, lock = leftovers.plan_of(folder)
    log, asked, cause = EventLog(folder), threading.Event(), []

    def listen() -> None:
        cause.append("asked" if "stop" in sys.stdin.readline() else "kernel gone")
        asked.set()

    def start(argv: list[str], name: str) -> subprocess.Popen:
        with open(os.path.join(folder, f"{name}.stderr"), "wb") as out:
            return subprocess.Popen(
                [*argv, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=folder, env=family.without_keys(os.environ) | {family.MARK: folder},
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
            )  # fmt: skip

    threading.Thread(target=listen, daemon=True).start()
    bench = start(plan["bench"], "bench")
    if plan["telemetry"]:
        start(plan["telemetry"], "telemetry")
    steps, kill_at = step_log.Drain(folder, log), float("inf")
    while bench.poll() is None and time.monotonic() < kill_at:
        if asked.wait(step_log.DRAIN_S) and kill_at == float("inf"):
            bench.send_signal(signal.CTRL_BREAK_EVENT)
            kill_at = time.monotonic() + GRACE_S
        steps.drain()
    code = bench.poll()
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for pid in below | family.logged_workers(folder):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.kill()
            process.wait(1)
    steps.remove()
    log.write("end", stop=cause[0] if cause else None, code=code)
    lock.close()  # Windows removes no open file
    leftovers.remove_tools(folder)
    if plan["after"] and cause != ["kernel gone"]:
        subprocess.Popen(plan["after"], cwd=folder, stdin=subprocess.DEVNULL)


def main(folder: str) -> None:
    """Supervise the run in `folder` to its end."""
    if sys.platform == "win32":
        supervise_on_windows(folder)
    else:
        Supervisor(folder).run()
