"""The experiments that are not training runs: small measurements of one thing each, a file for it.

Each file has its knobs, what is measured in the bench (`name(job, bench)`: `job` holds the knobs'
values, `bench` is a `labkit.bench.workbench.Workbench`), what follows from the numbers, and the
figure. It is read in the kernel and in the bench, so torch and matplotlib are imported `Later`.
"""

import importlib
import pkgutil

from labkit.spec import EXPERIMENTS, Experiment

__all__ = ["EXPERIMENTS", "Experiment"]

for _file in pkgutil.iter_modules(__path__):
    if _file.name != "own_cost":  # a program: `python -m` warns of one that is imported already
        importlib.import_module(f"{__name__}.{_file.name}")
