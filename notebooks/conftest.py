"""The notebooks as tests: their runs are short, and a claim that does not hold is an error.

`LABKIT_QUICK=0 pytest -n0 notebooks` runs them at full length and one by one, as a reader does.
"""

import os

import nbval.kernel
import pytest
from file_kernels import FileKernelManager

SETTINGS = {"LABKIT_STRICT": "1", "LABKIT_QUICK": os.environ.get("LABKIT_QUICK", "1")}
if SETTINGS["LABKIT_QUICK"] == "1":
    # A core each: more threads, or a standby, would take the one that another notebook needs
    SETTINGS |= {"OMP_NUM_THREADS": "1", "LABKIT_WARM": "0"}

nbval.kernel.KernelManager = FileKernelManager


def pytest_collection_modifyitems(items):
    """Mark the cells as slow, and those that are tagged so as nightly where runs are quick."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")
            is_long = "nightly" in item.cell.metadata.get("tags", ())
            if is_long and SETTINGS["LABKIT_QUICK"] == "1":
                item.add_marker("nightly")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give the settings to the kernels of notebooks, and to nothing else."""
    if item.path.suffix != ".ipynb":
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in SETTINGS.items():
            environment.setenv(name, value)
        return (yield)
