"""Tests run in a cache of their own: none of the user's runs, and nothing left behind."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HOME = tempfile.TemporaryDirectory(prefix="labkit-tests-")
os.environ["LABKIT_HOME"] = HOME.name
# A run's bench finds `planted.py` (faults) here
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])
)
for name in ("WANDB_API_KEY", "WANDB_MODE"):
    os.environ.pop(name, None)

fault_figures = []  # of injected faults: (what, clean-up in s, steps finished, steps recorded)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Cells of notebooks are slow; a slow test that fails is tried again, and said to be.

    Such a test times real processes on a machine that it shares: what fails three times is broken.
    """
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))


def pytest_terminal_summary(terminalreporter):
    """Say what the injected faults cost."""
    if fault_figures:
        lost = sum(max(0, finished - recorded) for _, _, finished, recorded in fault_figures)
        name, slowest = max(fault_figures, key=lambda row: row[1])[:2]
        terminalreporter.write_line(
            f"faults: {len(fault_figures)} injected into runs, {lost} finished steps lost, "
            f"slowest clean-up {slowest:.2f} s ({name})"
        )


@pytest.fixture(scope="session")
def tiny():
    """A pipeline whose run takes about half a second after the start."""
    from labkit import Pipeline

    return Pipeline(dataset="sleep", prep_ms=2, model="mlp", width=32, depth=1, steps=30)


@pytest.fixture(scope="session")
def finished(tiny):
    """One finished run, for tests that only read."""
    from labkit.results.launch import launch
    from labkit.results.run import Run

    run = launch(tiny).wait()
    assert run.outcome == "finished", run.error
    # Out of the way: a session makes more runs than a user keeps, and the oldest are deleted
    return Run(shutil.copytree(run.path, Path(HOME.name) / "kept" / run.path.name))


@pytest.fixture
def cards():
    """Install stand-in cards by name, on a clock of their own: `gpu = cards("H200", "T4")`."""
    import standin_gpu

    with contextlib.ExitStack() as held:

        def install(*names, **settings):
            found = [standin_gpu.CARDS[name] for name in names]
            return held.enter_context(standin_gpu.installed(*found, **settings))

        yield install


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    """A test that fails half way must not keep the device from the next one."""
    yield
    if launcher := sys.modules.get("labkit.process.launcher"):
        for handle in launcher.runs:
            if handle.alive():
                handle.stop()


@pytest.fixture
def labkit_command():
    """Run `python -m labkit ...` and return the completed process."""

    def call(*arguments, **more):
        command = [sys.executable, "-m", "labkit", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, **more)

    return call


def processes_of(folder: Path) -> list[str]:
    """Every living process that was started for the run in `folder`, or works in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            marked = f"LABKIT_RUN={folder}".encode() in (entry / "environ").read_bytes()
            if marked or str(folder) in command or os.readlink(entry / "cwd") == str(folder):
                found.append(f"{entry.name}: {command}")
    return found


def torch_segments() -> set[str]:
    """The names of torch's shared memory segments on this machine."""
    return {path.name for path in Path("/dev/shm").glob("torch_*")}


async def ended(shown):
    """Wait for a panel's run to be over, and for its buttons to say so."""
    await asyncio.wait_for(shown._task, 120)
    assert not shown.running and not shown.run_button.disabled and shown.stop_button.disabled


async def until(condition):
    """Wait for `condition()` in an event loop."""

    async def poll():
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), 120)
