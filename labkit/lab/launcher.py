"""Starting a run: its folder, its spec, and the supervisor that keeps it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import labkit
from labkit.bench import step_log
from labkit.bench.events import VERSION, EventLog
from labkit.lab import folders, processes
from labkit.lab.experiment import Experiment, Measurements
from labkit.lab.pipeline import Pipeline
from labkit.lab.run import Run

JOIN_S = 5.0  # the supervisor is gone 2 s after a forced stop at the latest

_keep: list[Supervised] = []  # a handle that is collected would close the pipe and end its run


class Supervised:
    """The kernel's handle on a run's supervisor."""

    def __init__(self, process: subprocess.Popen, folder: Path, log: EventLog):
        self.process, self.folder, self.log = process, folder, log
        self.checked = False

    def alive(self) -> bool:
        """Whether the supervisor is there; where it was killed, see to what it left."""
        if self.process.poll() is None:
            return True
        if not self.checked:
            self.checked = True
            if self.process.returncode != 0:
                self._after_its_death()
            self.log.close()
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        return False

    def stop(self) -> None:
        """Ask for Stop and wait until the run's last process is gone."""
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()
        self.join()

    def join(self) -> None:
        """Wait until the supervisor has ended."""
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.alive()

    def _after_its_death(self) -> None:
        """The system ended the bench with it (PDEATHSIG): clear up, write the missing end."""
        processes.wait_until_gone(processes.logged_bench(self.folder))
        processes.remove_segments(processes.logged_workers(self.folder))
        step_log.recover(self.folder)
        code = self.process.returncode
        self.log.write("end", stop=None, code=None, why=f"the supervisor was killed ({code})")


def launch(
    spec: Pipeline | Experiment, *, fault: str | None = None, after: list[str] | None = None
) -> Run | Measurements:
    """Start a pipeline or an experiment in its own process; return its Run or Measurements at once.

    `after` is a command the supervisor starts when the run is over. Raises OSError where no cache
    folder can be written or no process can be started.
    """
    _keep[:] = [handle for handle in _keep if handle.alive()]
    folder = folders.new_run()
    what, kind = described(spec)
    order = {"run": folder.name, "cache": str(folders.home()), **what}
    if fault:
        order["fault"] = fault
    bench = [sys.executable, "-u", "-m", "labkit.bench", str(folder)]
    plan = {
        "kernel_pid": os.getpid(),
        "bench": bench,
        "telemetry": [sys.executable, "-m", "labkit.bench.telemetry"],
        "after": after,
    }
    (folder / "spec.json").write_text(json.dumps(order), encoding="utf-8")
    (folder / "launch.json").write_text(json.dumps(plan), encoding="utf-8")
    log = EventLog(folder)
    log.write(
        "spec",
        version=VERSION,
        run=folder.name,
        utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        labkit=labkit.__version__,
        **what,
    )
    handle = Supervised(_start_supervisor(folder), folder, log)
    _keep.append(handle)
    return kind(folder, process=handle)


def described(spec: Pipeline | Experiment) -> tuple[dict[str, Any], type]:
    """Return what the log's first event says of `spec`, and the kind of log it makes."""
    if isinstance(spec, Experiment):
        where = {"pipeline": {"device": spec.device}}
        return {"experiment": spec.name, "params": dict(spec.params), **where}, Measurements
    return {"pipeline": spec.to_dict()}, Run


def _start_supervisor(folder: Path) -> subprocess.Popen:
    root = str(Path(labkit.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); "
        f"from labkit.lab.supervisor import main; main({str(folder)!r})"
    )
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), root]))
    with open(folder / "supervisor.stderr", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=env,
            start_new_session=True,
        )
