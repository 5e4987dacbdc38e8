"""What remedies for a loader say of its workers: how many, how long they live, and what to mind."""

from __future__ import annotations

from labkit.diagnosis.evidence import Evidence
from labkit.results.text import counted

AT_ONCE = (
    "Fetch a batch at once: index the tensors with a batch of indices; where dataset[[0, 1]] "
    "works, a BatchSampler as the DataLoader's sampler does so"
)
LARGER = "Use larger batches, or index the tensors without a DataLoader"

GUARDED = (
    ' Here a worker imports the script anew: let it train under `if __name__ == "__main__":` alone '
    "(for a notebook, keep the dataset's class in a .py file)."
)


def other_number(evidence: Evidence, number: int, is_kept: bool) -> dict[str, str]:
    """Return what the remedy says of another number of workers, which may be kept from now on."""
    now = evidence.num_workers or 0
    how = "Use fewer workers:" if number < now else "Use more workers:"
    if not now:
        how = "Prepare batches in other processes:"
    elif evidence.advised is None:
        how = "Double the workers, and see:"
    kept = ""
    if is_kept:
        kept = ", kept between epochs (persistent_workers=True)"
    return {
        "how": how,
        "kept": kept,
        "warned": too_many(number, evidence.use.cores),
        "shares": shares_said(evidence, number),
        "guarded": GUARDED if evidence.imports_script and not now else "",
    }


def shares_said(evidence: Evidence, workers: int) -> str:
    """Say, after a sentence, what a stream's workers need; "" of other datasets."""
    is_stream = evidence.code is not None and evidence.code.streams
    if not is_stream or evidence.num_workers or workers < 2:
        return ""
    return (
        " Each worker goes through the whole stream, unless its __iter__ takes a share by "
        f"torch.utils.data.get_worker_info(): else every item comes {counted(workers, 'time')}."
    )


def too_many(workers: int, cores: int | None) -> str:
    """Say that PyTorch warns of this many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above your {cores} cores, since only items that wait gain from more"
