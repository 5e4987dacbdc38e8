"""What remedies for a loader say of its workers: how many, how long they live, and what to mind."""

from __future__ import annotations

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.loader_code import LoopCode
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
        kept = f", kept between epochs (persistent_workers=True){remade_said(evidence.code)}"
    return {
        "how": how,
        "kept": kept,
        "warned": too_many(number, evidence.use.cores),
        "epochs": epochs_unseen(evidence.code) if is_kept else "",
        "shares": shares_said(evidence, number),
        "guarded": GUARDED if evidence.imports_script and not now else "",
    }


def epochs_unseen(code: LoopCode | None) -> str:
    """Say, after a sentence, what workers that are kept miss; "" where there is no `set_epoch`."""
    if code is None or code.epoch_setter is None:
        return ""
    return " Workers that are kept do not see what set_epoch() sets in the main process's dataset."


def shares_said(evidence: Evidence, workers: int) -> str:
    """Say, after a sentence, what a stream's workers need; "" of other datasets."""
    is_stream = evidence.code is not None and evidence.code.streams
    if not is_stream or evidence.num_workers or workers < 2:
        return ""
    return (
        " Each worker goes through the whole stream, unless its __iter__ takes a share by "
        f"torch.utils.data.get_worker_info(): else every item comes {counted(workers, 'time')}."
    )


def remade_said(code: LoopCode | None) -> str:
    """Say, before the end of a sentence, how workers outlive an epoch; "" of a loader made once."""
    if code is None or not code.remade:
        return ""
    said = (
        ", with the loader made once, above the loop over the epochs: it is made anew for each "
        "epoch, and its workers end with it"
    )
    if code.remade == "dataset":
        said += ". A sampler then draws each epoch's items from the whole dataset"
    return said


def too_many(workers: int, cores: int | None) -> str:
    """Say that PyTorch warns of this many workers, to end a sentence with; "" where it does not."""
    if not cores or workers <= cores:
        return ""
    return f"; PyTorch warns above your {cores} cores, since only items that wait gain from more"
