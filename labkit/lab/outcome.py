"""How a run ended, and what to do about it: from its last events to one clear sentence."""

from __future__ import annotations

import re
import signal
from typing import Any

# (what the reason says, what to do). The first that matches is shown behind the reason itself.
REMEDIES = [
    (r"out of memory|can't allocate memory|not enough memory|DefaultCPUAllocator",
     "lower batch_size, width or image_px, or use precision='bf16' and accumulation_steps."),
    (r"[Bb]us error|shared memory",
     "/dev/shm is full: lower num_workers, prefetch_factor or batch_size, "
     "or start the container with --shm-size=2g."),
    (r"worker.* (killed|exited unexpectedly)",
     "a loader worker died; if memory is short, lower num_workers or prefetch_factor."),
    (r"pickle",
     "workers that are spawned need a dataset they can be sent: define it, and its collate_fn and "
     "worker_init_fn, at the top of a module (no lambda, no local class, no open file)."),
    (r"DataLoader timed out", "a loader worker hangs: try num_workers=0 to see where."),
    (r"No space left on device", "the disk is full: free some space or move LABKIT_HOME."),
    (r"Too many open files", "raise the limit (ulimit -n 4096) or lower num_workers."),
    (r"is in use by", "press Stop there, or wait until it has finished."),
    (r"No module named 'torch'|libtorch", "install PyTorch: pip install -r requirements.txt."),
    (r"C\+\+ compiler", "install g++ or clang, or run with compile=None."),
    (r"SIGKILL", "often the out-of-memory killer: lower batch_size, width or num_workers."),
    (r"SIGSEGV|SIGABRT|SIGBUS", "the native stack is in the run folder's bench.stderr."),
]  # fmt: skip


def outcome(events: dict[str, dict[str, Any]], alive: bool) -> str:
    """Return "running", "finished", "stopped" or "failed" from the last event of each name."""
    if "done" in events:
        return "finished"
    if "error" in events and (events.get("end") or {}).get("stop") is None:
        return "failed"
    if "end" not in events:
        return "running" if alive else "failed"
    return "stopped" if events["end"].get("stop") else "failed"


def reason(events: dict[str, dict[str, Any]], alive: bool) -> str | None:
    """Return why the run failed: the original reason first, then a remedy where one is known."""
    if outcome(events, alive) != "failed":
        return None
    if error := events.get("error"):
        text = _lost_worker(error) + _original(error["kind"], error["message"])
    else:
        text = _death(events.get("end"))
    remedy = next((do for pattern, do in REMEDIES if re.search(pattern, text)), None)
    return f"{text} Remedy: {remedy}" if remedy else text


def _original(kind: str, message: str) -> str:
    """Return the first cause, also of an error that a loader worker sent over as text."""
    if "Original Traceback" in message:
        where = message.splitlines()[0].rstrip(".")
        last = [line for line in message.splitlines() if line and not line.startswith(" ")][-1]
        return f"{last} ({where[0].lower()}{where[1:]})."
    first = message.strip().splitlines()[0] if message.strip() else "no message"
    return f"{kind}: {first}".rstrip(".") + "."


def _lost_worker(error: dict[str, Any]) -> str:
    """Name a worker that died where the error only tells of a connection that broke."""
    dead = error.get("workers")
    if not isinstance(dead, dict) or not dead or "worker" in error["message"]:
        return ""
    pid, code = next(iter(dead.items()))
    return f"Loader worker {pid} was killed ({_exit(code)}). "


def _exit(code: Any) -> str:
    """Name an exit code as Python counts them: negative ones are signals."""
    if isinstance(code, int) and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _death(end: dict[str, Any] | None) -> str:
    if end is None:
        return "The run ended without a word: its record stops before the end."
    if end.get("why"):
        return f"{end['why'].rstrip('.')}."
    code = end.get("code")
    if isinstance(code, int) and code < 0:
        return f"The bench process was ended by {_exit(code)}."
    return f"The bench process ended with {_exit(code)}, before the run was done."
