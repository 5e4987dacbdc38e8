"""What a reader hands to the bench: their dataset and step, fetched and put in place as asked."""

from __future__ import annotations

import os
import pickle
import pkgutil
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

from labkit.bench import data
from labkit.bench.by_value import send_by_value
from labkit.bench.user_dataset import EndlessBatches, NamesTheItem, checked
from labkit.bench.user_step import OwnStep
from labkit.knobs import Settings
from labkit.orders import DataSource
from labkit.spec import LOADER_KNOBS, Job

USER_PARTS = ("dataset", "collate_fn", "step")


def prepare(source: DataSource, job: Job, folder: Path) -> tuple[OwnStep, EndlessBatches]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    parts = _fetch(source, folder)
    dataset = checked(parts["dataset"])
    collate = parts["collate_fn"] or torch.utils.data.default_collate
    streams = isinstance(dataset, IterableDataset)
    trainer = OwnStep(parts["step"], job)
    sampler = None
    if not streams:
        sampler = data.EndlessShuffle(len(dataset), job.seed)
        dataset = NamesTheItem(dataset)
    send_by_value()
    settings = data.loader_settings(job)
    loader = DataLoader(dataset, collate_fn=collate, sampler=sampler, **settings)
    return trainer, EndlessBatches(loader, job)


def _fetch(source: DataSource, folder: Path) -> Settings:
    """Return {part: object or None}; the payload is deleted as soon as it has been read."""
    os.chdir(source["cwd"])  # the reader's relative paths
    sys.path += [place for place in source["path"] if place not in sys.path]
    parts: Settings = dict.fromkeys(USER_PARTS)
    for name, text in source["imports"].items():  # "module:name"
        parts[name] = pkgutil.resolve_name(text)
    made = parts["dataset"]  # a dataset already, or the function or class that makes one
    is_made = not isinstance(made, type) and hasattr(made, "__getitem__")
    if made is not None and not is_made:
        parts["dataset"] = made()
    if source["payload"]:  # objects of the user's own kernel, for this process only
        payload = folder / source["payload"]
        try:
            parts |= pickle.loads(payload.read_bytes())
        finally:
            payload.unlink(missing_ok=True)
    return parts


def knobs_on_parts(job: Job) -> dict[str, object]:
    """Return the knobs that act on the reader's parts."""
    return {name: getattr(job, name) for name in LOADER_KNOBS}
