"""Why a run failed, in words, and what to do about it."""

from __future__ import annotations

import re

from labkit.process.family import exit_name
from labkit.stamps.record import Event

# {pattern of a reason: the remedy}; the first pattern that matches is used
REMEDIES = {
    r"busy or unavailable": (
        "another process has the card, and its compute mode lets in one only: restart the "
        "notebook's kernel, end the other process, or have an administrator run "
        "nvidia-smi -c DEFAULT."
    ),
    r"Cannot re-initialize CUDA in forked subprocess": (
        "a dataset or collate_fn uses the GPU in a loader's worker: keep its tensors in RAM and "
        "move the batch in the loop, or set num_workers=0."
    ),
    r"no kernel image": (
        "install the torch for this card (https://pytorch.org/get-started/locally), or run with "
        "device='cpu'."
    ),
    r"out of memory|can't allocate memory|not enough memory|DefaultCPUAllocator": (
        "lower batch_size, width or image_px, or use precision='bf16' and accumulation_steps."
    ),
    r"[Bb]us error|shared memory|</torch_\d": (
        "/dev/shm is full: lower num_workers or batch_size, or give the container --shm-size=2g."
    ),
    r"Can't get attribute .* on <module '__m(p_m)?ain__'": (
        "workers are started anew (spawn, forkserver) and do not know a notebook's classes: move "
        "the dataset to a .py file and import it; or, where nothing has used a GPU, pass "
        "multiprocessing_context='fork' to the DataLoader."
    ),
    r"bootstrapping phase|freeze_support": (
        "workers import the script anew here: let it train under if __name__ == '__main__': alone."
    ),
    r"worker.* (killed|ended).*SIGKILL": (
        "often the out-of-memory killer: lower num_workers or prefetch_factor."
    ),
    r"worker.* (killed|ended|exited unexpectedly)": (
        "a loader worker died: num_workers=0 shows its error. A worker that is started anew "
        "(spawn, forkserver) knows no class of a notebook: move the dataset to a .py file, or pass "
        "multiprocessing_context='fork' where nothing has used a GPU."
    ),
    r"(can ?not|can't) .*pickle.*in DataLoader worker": (
        "workers send what the dataset returns: tensors, arrays, texts; no lambdas or open files."
    ),
    r"pickle": "workers are sent the dataset: define all of it at the top of a module.",
    r"DataLoader timed out": "a loader worker hangs: try num_workers=0 to see where.",
    r"No space left on device|quota exceeded": (
        "the disk is full: free some space or move LABKIT_HOME."
    ),
    r"Too many open files|items of ancdata|^EOFError: no message": (
        "allow more open files (ulimit -n 4096), or lower num_workers."
    ),
    r"Read-only file system": "set LABKIT_HOME to a folder that can be written to.",
    r"No such file or directory: .*python|could not start Python": (
        "this kernel's Python is gone: choose another kernel, or install its environment again."
    ),
    r"No module named 'torch'|libtorch|undefined symbol": "install PyTorch: requirements.txt.",
    r"stops before the end": "the computer went down, or the disk is full: run it again.",
    r"C\+\+ compiler": "install g++ or clang, or run with compile=None.",
    r"SIGKILL": "often the out-of-memory killer: lower batch_size, width or num_workers.",
    r"SIGSEGV|SIGABRT|SIGBUS|SIGILL": "the native stack is in the run folder's bench.stderr.",
}


def with_remedy(reason: str) -> str:
    """Return `reason`, followed by what to do about it where that is known."""
    for pattern, remedy in REMEDIES.items():
        if re.search(pattern, reason):
            return f"{reason} Remedy: {remedy}"
    return reason


def reason_of_failure(error: Event | None, end: Event | None) -> str:
    """Say why a run failed, from its last `error` and `end` events, with a remedy where known."""
    if error is not None:
        reason = _first_cause(error)
    elif end is None:
        reason = "The run ended without a word: its record stops before the end."
    elif end.get("why"):
        reason = f"{end['why'].rstrip('.')}."
    else:
        reason = f"The bench process was ended by {exit_name(end.get('code'))}."
    return with_remedy(reason)


def _first_cause(error: Event) -> str:
    """Say what an `error` event reports; of an error that a worker sent as text, its cause."""
    message = error["message"].strip()
    lines = message.splitlines() or ["no message"]
    headline = lines[0].rstrip(".")
    text = f"{error['kind']}: {headline}."
    if "Original Traceback" in message:
        causes = [line for line in lines if line and not line.startswith(" ")]
        text = f"{causes[-1]} ({headline})."
    if workers := error.get("workers"):
        pid, code = next(iter(workers.items()))
        text = f"Loader worker {pid} was ended by {exit_name(code)}. {text}"
    return text
