"""What a reader hands to the bench: their dataset and step, fetched and put in place as asked."""

from __future__ import annotations

import os
import pickle
import pkgutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from labkit.bench import data
from labkit.bench.by_value import send_by_value
from labkit.bench.user_dataset import EndlessBatches, NamesTheItem, checked
from labkit.bench.user_step import OwnStep
from labkit.knobs import Settings
from labkit.orders import UserSource
from labkit.spec import Job


def fetch(source: UserSource, folder: Path) -> Any:
    """Return what the user's kernel sent, for this process only; relative paths are theirs."""
    os.chdir(source["cwd"])
    sys.path += [place for place in source["path"] if place not in sys.path]
    return pickle.loads((folder / source["payload"]).read_bytes())


def prepare(source: UserSource, job: Job, folder: Path) -> tuple[OwnStep, EndlessBatches]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    try:
        parts: Settings = {name: named(part) for name, part in fetch(source, folder).items()}
    finally:
        (folder / source["payload"]).unlink(missing_ok=True)
    dataset = parts["dataset"]
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        dataset = dataset()  # what makes it
    dataset = checked(dataset)
    collate = parts.get("collate_fn") or torch.utils.data.default_collate
    streams = isinstance(dataset, IterableDataset)
    trainer = OwnStep(parts.get("step"), job)
    sampler = None
    if not streams:
        sampler = data.EndlessShuffle(len(dataset), job.seed)
        dataset = NamesTheItem(dataset)
    send_by_value()
    settings = data.loader_settings(job)
    loader = DataLoader(dataset, collate_fn=collate, sampler=sampler, **settings)
    return trainer, EndlessBatches(loader, job)


def named(part: object) -> object:
    """Return a part, or what it names: "module:name"."""
    return pkgutil.resolve_name(part) if isinstance(part, str) else part
