"""The supervisor: stands between the kernel and the bench, and leaves nothing behind.

Standard library only and single-threaded, so that it starts in 0.04 s, needs 12 MB and cannot be
held up by a GIL, a driver or a full pipe. It starts the bench and the telemetry, writes the steps
the bench has done, passes on Stop, keeps what they print (capped), and writes how the run ended
once every descendant is gone.

The kernel talks to it through stdin: a line "stop" asks for Stop, end of file means that the
kernel is gone. `python -c "from labkit.process.supervisor import main; main(FOLDER)"` starts it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
import sys
import time

from labkit.process import family as processes
from labkit.process import leftovers, step_log
from labkit.process.capped_file import CappedFile
from labkit.process.events import EventLog

GRACE_S = 1.0  # between asking the bench to stop and killing it
GRACE_WITHOUT_KERNEL_S = 0.2

LINUX = sys.platform == "linux"


class Supervisor:
    """One run's keeper, from starting the bench to the last process gone."""

    def __init__(self, folder: str):
        self.plan, self.lock = leftovers.plan_of(folder)
        self.folder = folder
        self.log = EventLog(folder)
        self.steps = step_log.Drain(folder, self.log)
        self.bench: subprocess.Popen | None = None
        self.stop_cause: str | None = None  # "asked", "kernel gone" or "disk full"
        self.kill_at = float("inf")
        self.status: int | None = None  # the bench's wait status
        self.family: set[int] = set()
        self.selector = selectors.DefaultSelector()
        self.outputs: list[tuple[int, CappedFile]] = []

    def run(self) -> None:
        """Start everything, wait for the end of the run, clean up, write the `end` event."""
        # The kernel's interrupt is not ours. A handler, as an ignored signal would be inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop("asked"))
        if LINUX:
            processes.adopt_orphans()
        self._watch(sys.stdin.fileno(), self._on_stdin)
        self._watch_pid(self.plan["kernel_pid"], lambda: self.stop("kernel gone"))
        try:
            self._start_all()
        except OSError as error:
            self.log.write("end", stop=None, code=None, why=f"could not start Python: {error}")
            leftovers.remove_tools(self.folder)
            return
        self._wait()
        self._clean_up()
        self.steps.remove()
        self._write_end()
        leftovers.remove_tools(self.folder)
        if not self.log.flush():
            sys.exit(f"labkit: the event log could not be written: {self.log.error}")
        if self.stop_cause != "kernel gone":
            self._start_after()

    def _write_end(self) -> None:
        code = os.waitstatus_to_exitcode(self.status) if self.status is not None else None
        why = {}
        if self.stop_cause == "disk full":
            why["why"] = f"the event log could not be written: {self.log.error}"
        stop = None if why else self.stop_cause
        self.log.write("end", stop=stop, code=code, **why)

    def stop(self, cause: str) -> None:
        """Ask the bench to end; it is killed when its grace is over."""
        if self.stop_cause is None:
            self.stop_cause = cause
            grace = GRACE_WITHOUT_KERNEL_S if cause == "kernel gone" else GRACE_S
            self.kill_at = time.monotonic() + grace
            if self.bench is not None and self.status is None:
                with contextlib.suppress(OSError):
                    os.kill(self.bench.pid, signal.SIGINT)

    def _start_all(self) -> None:
        env = processes.without_keys(os.environ)
        env[processes.MARK] = self.folder
        here = str(os.getpid())
        self.bench = self._start([*self.plan["bench"], here], env, "bench", keep_output=True)
        self._watch_pid(self.bench.pid, lambda: None)
        with contextlib.suppress(OSError):  # numbers without telemetry are still numbers
            self._start([*self.plan["telemetry"], here], env, "telemetry", keep_output=False)

    def _start(self, argv, env, name: str, keep_output: bool) -> subprocess.Popen:
        out = subprocess.PIPE if keep_output else subprocess.DEVNULL
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            cwd=self.folder,
            start_new_session=True,
        )
        self.family.add(child.pid)
        child.returncode = 0  # its status is collected here, by `reap`, not by Popen
        for stream, kind in ((child.stdout, "stdout"), (child.stderr, "stderr")):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                fd, kept = stream.fileno(), CappedFile(os.path.join(self.folder, f"{name}.{kind}"))
                self.outputs.append((fd, kept))
                self._watch(fd, functools.partial(self._copy, fd, kept))
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
        if not data:
            self.selector.unregister(sys.stdin.fileno())
            self.stop("kernel gone")
        elif b"stop" in data:
            self.stop("asked")

    def _copy(self, fd: int, kept: CappedFile) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 65536):
                kept.write(data)
                if len(data) < 65536:
                    return
            with contextlib.suppress(KeyError):  # it may have ended before
                self.selector.unregister(fd)

    def _wait(self) -> None:
        """Serve stdin, output and steps until the bench is gone or its grace is over."""
        while self.status is None:
            left = max(0.0, min(step_log.DRAIN_S, self.kill_at - time.monotonic()))
            for key, _ in self.selector.select(left):
                key.data()
            self.steps.drain()
            if self.log.error is not None:
                self.stop("disk full")
            if not LINUX and os.getppid() != self.plan["kernel_pid"]:
                self.stop("kernel gone")
            self.status = processes.reap().get(self.bench.pid)
            if time.monotonic() >= self.kill_at:
                return

    def _clean_up(self) -> None:
        if LINUX:
            self._kill_family()
        else:
            for pid in self.family:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            deadline = time.monotonic() + 1
            while self.status is None and time.monotonic() < deadline:
                self.status = processes.reap().get(self.bench.pid)
                time.sleep(0.005)
        for fd, kept in self.outputs:
            with contextlib.suppress(OSError):
                self._copy(fd, kept)
            kept.close()

    def _kill_family(self) -> None:
        statuses = processes.end_all(os.getpid(), self.family)
        deadline = time.monotonic() + 0.5
        while self.status is None:  # a zombie can be collected only when its last thread is gone
            self.status = statuses.get(self.bench.pid)
            if self.status is not None or time.monotonic() > deadline:
                break
            time.sleep(0.003)
            statuses |= processes.reap()
        processes.remove_segments(self.family | processes.logged_workers(self.folder))

    def _start_after(self) -> None:
        """Start what the run asked for afterwards (the W&B log), on its own and with its keys."""
        if argv := self.plan.get("after"):
            with (
                contextlib.suppress(OSError),
                open(os.path.join(self.folder, "after.log"), "wb") as out,
            ):
                subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=self.folder,
                    start_new_session=True,
                ).returncode = 0


def main(folder: str) -> None:
    """Supervise the run in `folder` to its end."""
    if sys.platform == "win32":
        from labkit.process import supervisor_windows

        supervisor_windows.supervise(folder)
    else:
        Supervisor(folder).run()
