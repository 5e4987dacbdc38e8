"""Starting a run: its folder, its spec, and the supervisor that keeps it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import labkit
from labkit.process import family as processes
from labkit.process import folders, leftovers
from labkit.process.events import RESERVE_BYTES, RESERVE_NAME, VERSION, EventLog
from labkit.results import outcome
from labkit.results.load import kind_of
from labkit.results.measurements import Experiment, Measurements
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.results.slow_script import SlowScript
from labkit.spec import Distributed, Pipeline

TELEMETRY = [sys.executable, "-m", "labkit.bench.telemetry"]
JOIN_S = 5.0  # the supervisor is gone 2 s after a forced stop at the latest

_keep: list[Supervised] = []  # a handle that is collected would close the pipe and end its run


class Supervised:
    """The kernel's handle on a run's supervisor."""

    def __init__(self, process: subprocess.Popen, folder: Path):
        self.process, self.folder = process, folder
        self.checked = False

    def alive(self) -> bool:
        """Whether the supervisor is there; where it was killed, see to what it left."""
        if self.process.poll() is None:
            return True
        if not self.checked:
            self.checked = True
            if self.process.returncode != 0:
                leftovers.clear_up(self.folder, stop=None, code=None, why=self._why())
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        return False

    def _why(self) -> str:
        """Say how the supervisor came to its end."""
        code = self.process.returncode
        if code < 0:
            return f"the supervisor was killed ({outcome.exit_name(code)})"
        with contextlib.suppress(OSError):
            said = (self.folder / "supervisor.stderr").read_text(errors="replace").strip()
            return f"the supervisor failed: {(said.splitlines() or ['no message'])[-1]}"
        return f"the supervisor failed ({outcome.exit_name(code)})"

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


def launch(
    spec: Pipeline | Experiment | SlowScript | Distributed,
    *,
    fault: str | None = None,
    after: list[str] | None = None,
    source: Any = None,
) -> Run | Measurements | Ranks:
    """Start a pipeline, an experiment or ranks apart from the kernel; return what tells of it.

    `after` is a command the supervisor starts when the run is over. `source` (a tune floor's
    Source) feeds the reader's own dataset and step to the pipeline's loader settings. Raises
    OSError where no cache folder can be written or no process can be started.
    """
    _keep[:] = [handle for handle in _keep if handle.alive()]
    folder = folders.new_run()
    leftovers.clear(folder.parent)
    what = spec.to_spec()
    order = {"run": folder.name, "cache": str(folders.home()), **what}
    if fault:
        order["fault"] = fault
    if source is not None:
        order["source"] = source.place(folder)
        what = source.described(spec)
    plan = {
        "kernel_pid": os.getpid(),
        "system": processes.this_system(),
        "bench": bench_command(spec, folder),
        "telemetry": TELEMETRY,
        "after": after,
    }
    try:
        (folder / "spec.json").write_text(json.dumps(order), encoding="utf-8")
        (folder / leftovers.PLAN_NAME).write_text(json.dumps(plan), encoding="utf-8")
        (folder / RESERVE_NAME).write_bytes(bytes(RESERVE_BYTES))
        _write_spec(folder, what)
        handle = Supervised(_start_supervisor(folder, keys=after is not None), folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(outcome.with_remedy(f"No run could be started: {error}.")) from error
    _keep.append(handle)
    return kind_of(what)(folder, process=handle)


def supervised(folder: Path, command: list[str]) -> Supervised:
    """Start `command` in `folder`, kept by a supervisor as a run's bench is.

    It is given the supervisor's pid as its last argument. Raises OSError.
    """
    plan = {
        "kernel_pid": os.getpid(),
        "system": processes.this_system(),
        "bench": command,
        "telemetry": [""],  # cannot be started: there is nothing to measure
        "after": None,
    }
    (folder / leftovers.PLAN_NAME).write_text(json.dumps(plan), encoding="utf-8")
    handle = Supervised(_start_supervisor(folder, keys=False), folder)
    _keep.append(handle)
    return handle


def bench_command(spec: Any, folder: Path) -> list[str]:
    """Return the command that measures what `spec`, written into `folder`, asks for."""
    program = "labkit.bench.torchrun_launcher" if isinstance(spec, Distributed) else "labkit.bench"
    return [sys.executable, "-u", "-m", program, str(folder)]


def _write_spec(folder: Path, what: dict[str, Any]) -> None:
    log = EventLog(folder)
    log.write(
        "spec",
        version=VERSION,
        run=folder.name,
        utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        labkit=labkit.__version__,
        **what,
    )
    log.close()


def _start_supervisor(folder: Path, keys: bool) -> subprocess.Popen:
    root = str(Path(labkit.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); "
        f"from labkit.process.supervisor import main; main({str(folder)!r})"
    )
    env = dict(os.environ) if keys else processes.without_keys(os.environ)
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
