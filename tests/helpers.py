"""What several test files look for, and wait for."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

from labkit.stamps.record import events_of

# Else an optimizer imports torch's compiler: as long again as torch, in each script that is run
NO_COMPILER = (
    "import sys, types; sys.modules['torch._dynamo'] = types.SimpleNamespace("
    "disable=lambda fn=None, *_, **__: fn, graph_break=lambda: None)"
)


def script_in(folder, text):
    """Write a script, whose text begins with an empty line, without torch's compiler."""
    path = folder / "train.py"
    path.write_text(NO_COMPILER + text)
    return path


def processes_of(folder):
    """The pid and command of each living process of the run in `folder`, or that works in it."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            marked = f"LABKIT_RUN={folder}".encode() in (entry / "environ").read_bytes()
            if marked or str(folder) in command or os.readlink(entry / "cwd") == str(folder):
                found[int(entry.name)] = command
    return found


def torch_segments():
    """The names of torch's shared memory segments on this machine."""
    return {path.name for path in Path("/dev/shm").glob("torch_*")}


class Waiting(Dataset):
    """Items that wait, as from a slow drive."""

    def __init__(self, seconds, size=1600):
        self.seconds = seconds
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((8,), index / self.size)


def watched(command, **more):
    """Run a command under `labkit watch --json`; return how it ended, and what was found."""
    watch = [sys.executable, "-m", "labkit", "watch", "--json", "--", *map(str, command)]
    done = subprocess.run(watch, capture_output=True, text=True, timeout=240, **more)
    return done, json.loads(done.stdout)


async def ended(shown):
    """Wait for a panel's run to be over, and for its buttons to say so."""
    await asyncio.wait_for(shown.task, 120)
    assert not shown.running and not shown.run_button.disabled and shown.stop_button.disabled


async def until(condition):
    """Wait for `condition()` in an event loop."""

    async def poll():
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), 120)


def steps_in(path):
    """The `step` events of a record."""
    return [event for event in events_of(path) if event["event"] == "step"]
