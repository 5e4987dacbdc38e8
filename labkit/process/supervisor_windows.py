"""The supervisor on Windows: a kill-on-close Job Object in place of signals and sessions.

Everything the bench starts is in one job; closing its handle, also by the supervisor's own death,
ends them all. Not run on the project's test machines, which have no Windows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from labkit.process import family as processes
from labkit.process import leftovers, step_log
from labkit.process.events import EventLog

EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
KILL_ON_JOB_CLOSE = 0x2000


def make_job() -> int:
    """Create a Job Object whose members die when its last handle closes; return the handle."""
    kernel32 = ctypes.windll.kernel32
    job = kernel32.CreateJobObjectW(None, None)
    limits = (ctypes.c_byte * 144)()  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION, 64-bit
    ctypes.c_uint32.from_buffer(limits, 16).value = KILL_ON_JOB_CLOSE
    kernel32.SetInformationJobObject(job, EXTENDED_LIMITS, limits, len(limits))
    return job


def supervise(folder: str) -> None:
    """Start the bench and telemetry of `folder` in a job, pass on Stop, write how it ended."""
    plan, lock = leftovers.plan_of(folder)
    log, job, asked = EventLog(folder), make_job(), threading.Event()
    cause: list[str] = []

    def listen() -> None:
        line = sys.stdin.readline()
        cause.append("asked" if "stop" in line else "kernel gone")
        asked.set()

    def start(argv: list[str], name: str) -> subprocess.Popen:
        with open(os.path.join(folder, f"{name}.stderr"), "wb") as out:
            child = subprocess.Popen(
                [*argv, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                env=processes.without_keys(os.environ) | {processes.MARK: folder},
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
            )
        ctypes.windll.kernel32.AssignProcessToJobObject(job, int(child._handle))
        return child

    threading.Thread(target=listen, daemon=True).start()
    bench, _ = start(plan["bench"], "bench"), start(plan["telemetry"], "telemetry")
    steps = step_log.Drain(folder, log)
    while bench.poll() is None and not asked.wait(step_log.DRAIN_S):
        steps.drain()
    if bench.poll() is None:
        bench.send_signal(signal.CTRL_BREAK_EVENT)
        deadline = time.monotonic() + 1
        while bench.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    code = bench.poll()
    ctypes.windll.kernel32.TerminateJobObject(job, 1)
    steps.remove()
    log.write("end", stop=cause[0] if cause else None, code=code)
    lock.close()  # Windows removes no open file
    leftovers.remove_tools(folder)
    if plan.get("after") and cause != ["kernel gone"]:
        subprocess.Popen(plan["after"], cwd=folder, stdin=subprocess.DEVNULL)
