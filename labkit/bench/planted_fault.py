"""A fault that the tests or the labelled fault set plant in a run; a user's run has none."""

from __future__ import annotations

import importlib
from typing import TypeVar

Items = TypeVar("Items")  # a dataset


def planted(fault: str | None, dataset: Items, trainer: object) -> Items:
    """Plant a spec's `fault`, "module:function:argument"; return what the dataset becomes.

    The function is called with the argument, the dataset and the trainer.
    """
    if not fault:
        return dataset
    module, function, argument = fault.split(":", 2)
    return getattr(importlib.import_module(module), function)(argument, dataset, trainer)
