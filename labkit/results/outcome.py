"""How a run ended, and what to do about it: from its last events to one clear sentence."""

from __future__ import annotations

import re
from typing import Any

from labkit.process.family import exit_name

# (what the reason says, what to do). The first that matches is shown behind the reason itself.
REMEDIES = [
    (r"out of memory|can't allocate memory|not enough memory|DefaultCPUAllocator",
     "lower batch_size, width or image_px, or use precision='bf16' and accumulation_steps."),
    (r"[Bb]us error|shared memory",
     "/dev/shm is full: lower num_workers, prefetch_factor or batch_size, "
     "or start the container with --shm-size=2g."),
    (r"worker.* (killed|ended|exited unexpectedly)",
     "a loader worker died; if memory is short, lower num_workers or prefetch_factor."),
    (r"(can ?not|can't) .*pickle.*in DataLoader worker",
     "what the dataset or collate_fn returns is sent by a worker: return tensors, arrays, numbers "
     "or texts, no lambdas, locks or open files."),
    (r"pickle",
     "workers that are spawned need a dataset they can be sent: define it, and its collate_fn and "
     "worker_init_fn, at the top of a module (no lambda, no local class, no open file)."),
    (r"DataLoader timed out", "a loader worker hangs: try num_workers=0 to see where."),
    (r"No space left on device|quota exceeded",
     "the disk is full: free some space or move LABKIT_HOME."),
    (r"Too many open files|items of ancdata",
     "raise the limit (ulimit -n 4096) or lower num_workers."),
    (r"is in use by", "press Stop there, or wait until it has finished."),
    (r"Read-only file system", "set LABKIT_HOME to a folder that can be written to."),
    (r"No such file or directory: .*python|could not start Python",
     "the Python of this kernel is gone: choose another kernel, or install its environment again."),
    (r"No module named 'torch'|libtorch|undefined symbol",
     "install PyTorch: pip install -r requirements.txt."),
    (r"record stops before the end",
     "the computer may have gone down, or the disk is full: run it again."),
    (r"C\+\+ compiler", "install g++ or clang, or run with compile=None."),
    (r"SIGKILL", "often the out-of-memory killer: lower batch_size, width or num_workers."),
    (r"SIGSEGV|SIGABRT|SIGBUS|SIGILL", "the native stack is in the run folder's bench.stderr."),
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
        text = _original(error["kind"], error["message"])
        text = _lost_worker(error) + _short_of_files(error) + text
    else:
        text = _death(events.get("end"))
    return with_remedy(text)


def with_remedy(text: str) -> str:
    """Return `text`, followed by what to do about it where that is known."""
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
    """Name a worker that died, and of what, where the error does not say so itself."""
    dead = error.get("workers")
    if not isinstance(dead, dict) or not dead:
        return ""
    pid, code = next(iter(dead.items()))
    if re.search(r"worker.* (signal|exit code)", error["message"]):
        return ""
    killed = "was killed" if isinstance(code, int) and code < 0 else "ended"
    return f"Loader worker {pid} {killed} ({exit_name(code)}). "


def _short_of_files(error: dict[str, Any]) -> str:
    """Say that files ran out where the error only tells of what could not be answered for it."""
    files = error.get("files")
    if not isinstance(files, list) or len(files) != 2 or "Too many open files" in error["message"]:
        return ""
    return f"Too many open files: a process of the run had {files[0]} of {files[1]} allowed. "


def _death(end: dict[str, Any] | None) -> str:
    if end is None:
        return "The run ended without a word: its record stops before the end."
    if end.get("why"):
        return f"{end['why'].rstrip('.')}."
    code = end.get("code")
    if isinstance(code, int) and code < 0:
        return f"The bench process was ended by {exit_name(code)}."
    return f"The bench process ended with {exit_name(code)}, before the run was done."
