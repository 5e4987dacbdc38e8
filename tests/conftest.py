"""Tests run in a cache of their own: none of the user's runs, and nothing left behind.

Tests run side by side, a process for each core, on one thread each. One that compares measured
times (`measures`) waits until the others are through, and they wait for it. Notebooks run side by
side: a quick run judges no claim that needs the whole machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

try:
    import fcntl
except ImportError:  # Windows: tests that measure are not kept apart
    fcntl = None

HOME = tempfile.TemporaryDirectory(prefix="labkit-tests-")
os.environ["LABKIT_HOME"] = HOME.name
SHARED = os.environ.setdefault("LABKIT_TESTS", HOME.name)  # by the processes of one test run
NIGHTLY = os.environ.get("LABKIT_NIGHTLY") == "1"  # with what guards against rare events
usual = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("usual", derandomize=True, max_examples=15, **usual)
settings.register_profile("nightly", print_blob=True, max_examples=300, **usual)
settings.load_profile("nightly" if NIGHTLY else "usual")
# A run's bench finds the faults that break it in tests/, those that cost time in maintain/
FAULTS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "maintain")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *FAULTS]))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a test run in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("WANDB_API_KEY", "WANDB_MODE"):
    os.environ.pop(name, None)
if "PYTEST_XDIST_WORKER" in os.environ:  # more threads would spin on the cores of other tests
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(trylast=True)  # behind the marks of notebooks/conftest.py
def pytest_collection_modifyitems(config, items):
    """Put the longest files first, and leave the nightly tests out."""
    slow_tests = Counter(item.path for item in items if item.get_closest_marker("slow"))

    def length(item):
        return item.path.suffix == ".ipynb", slow_tests[item.path]

    items.sort(key=length, reverse=True)  # stable: a file's tests stay together, in their order
    nightly = [] if NIGHTLY else [item for item in items if item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=nightly)
    items[:] = [item for item in items if item not in nightly]


@contextlib.contextmanager
def locked(name, how):
    """Hold a lock that the processes of one test run share."""
    with open(Path(SHARED) / f"{name}.lock", "a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:  # closing is not enough: a process that a test forked has the file open too
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Let a test that measures run by itself, the others side by side."""
    if "PYTEST_XDIST_WORKER" not in os.environ or fcntl is None:
        return (yield)
    alone = item.get_closest_marker("measures") is not None
    with contextlib.ExitStack() as held:
        with locked("turn", fcntl.LOCK_EX):  # or those side by side would never let it in
            held.enter_context(locked("machine", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)


@pytest.fixture(scope="session")
def tiny():
    """A pipeline whose run takes about half a second after the start."""
    from labkit import Pipeline

    return Pipeline(dataset="sleep", prep_ms=2, model="mlp", width=32, depth=1, steps=30)


@pytest.fixture(scope="session")
def finished(tiny):
    """One finished run, for tests that only read."""
    from labkit import Run
    from labkit.api import launch

    run = launch(tiny).wait()
    assert run.outcome == "finished", run.error
    # Out of the way: a session makes more runs than a user keeps, and the oldest are deleted
    return Run(shutil.copytree(run.path, Path(HOME.name) / "kept" / run.path.name))


@pytest.fixture
def cards():
    """Install a stand-in card by its name, on a clock of its own: `gpu = cards("H200")`."""
    import standin_gpu

    with contextlib.ExitStack() as held:

        def install(name):
            return held.enter_context(standin_gpu.installed(standin_gpu.CARDS[name]))

        yield install


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    """A test that fails half way must not keep the device from the next one."""
    yield
    if launcher := sys.modules.get("labkit.process.launcher"):
        for handle in launcher.runs:
            if handle.is_alive:
                handle.stop()


@pytest.fixture
def watches_end():
    """Compute in one thread, else every operator waits for two cores; end every watch."""
    import torch

    from labkit.view import watch_live

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    watch_live.close_all()


@pytest.fixture
def labkit_command():
    """Run `python -m labkit ...` and return the completed process."""

    def call(*arguments, **more):
        command = [sys.executable, "-m", "labkit", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, **more)

    return call
