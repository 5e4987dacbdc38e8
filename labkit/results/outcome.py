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
    stopped = events.get("end", {}).get("stop") is not None
    if "error" in events and not stopped:
        return "failed"
    if "end" not in events:
        return "running" if alive else "failed"
    return "stopped" if stopped else "failed"


def reason(events: dict[str, dict[str, Any]], alive: bool) -> str | None:
    """Return why the run failed: the original reason first, then a remedy where one is known."""
    if outcome(events, alive) != "failed":
        return None
    end = events.get("end")
    if error := events.get("error"):
        text = _of_error(error)
    elif end is None:
        text = "The run ended without a word: its record stops before the end."
    elif end.get("why"):
        text = f"{end['why'].rstrip('.')}."
    elif (code := end.get("code")) is not None and code < 0:
        text = f"The bench process was ended by {exit_name(code)}."
    else:
        text = f"The bench process ended with {exit_name(code)}, before the run was done."
    return with_remedy(text)


def with_remedy(text: str) -> str:
    """Return `text`, followed by what to do about it where that is known."""
    remedy = next((do for pattern, do in REMEDIES if re.search(pattern, text)), None)
    return f"{text} Remedy: {remedy}" if remedy else text


def _of_error(error: dict[str, Any]) -> str:
    """Return the first cause, also of an error that a loader worker sent over as text.

    In front of it stands what it does not say itself: which worker died, that files ran out.
    """
    message, before = error["message"].strip(), ""
    lines = message.splitlines() or ["no message"]
    if "Original Traceback" in message:
        last = [line for line in lines if line and not line.startswith(" ")][-1]
        text = f"{last} ({lines[0][0].lower()}{lines[0][1:].rstrip('.')})."
    else:
        text = f"{error['kind']}: {lines[0]}".rstrip(".") + "."
    dead, files = error.get("workers"), error.get("files")
    if dead and not re.search(r"worker.* (signal|exit code)", message):
        pid, code = next(iter(dead.items()))
        how = "was killed" if isinstance(code, int) and code < 0 else "ended"
        before = f"Loader worker {pid} {how} ({exit_name(code)}). "
    if files and "Too many open files" not in message:
        before += (
            f"Too many open files: a process of the run had {files[0]} of {files[1]} allowed. "
        )
    return before + text
