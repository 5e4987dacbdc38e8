"""The notebooks as tests: their runs are short, and a claim that does not hold is an error.

`LABKIT_QUICK=0 pytest -n0 notebooks` runs them at full length and one by one, as a reader does.
"""

import os

import pytest

SETTINGS = {"LABKIT_STRICT": "1", "LABKIT_QUICK": os.environ.get("LABKIT_QUICK", "1")}
if (
    SETTINGS["LABKIT_QUICK"] == "1"
):  # a core each: more threads would spin on the core that the other notebook needs
    SETTINGS["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items):
    """Mark the cells as slow."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give the settings to the kernels of notebooks, and to nothing else."""
    if item.path.suffix != ".ipynb":
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in SETTINGS.items():
            environment.setenv(name, value)
        return (yield)
