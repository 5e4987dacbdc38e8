"""What freed memory costs a run: glibc keeps it, and garbage is sought among new objects."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
STEPS = 20
FAULTS = f"""
import resource

import torch

from labkit.instruments import resources

resources.keep_freed_memory()


def step():
    activations = [torch.ones(25_000) for _ in range(100)]  # of 100 kB


step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

COLLECTED = """
import gc

gc.disable()
import torch

from labkit.instruments import resources

resources.collect_garbage()
print(len(gc.get_objects(0)) // 1000, gc.isenabled())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
def test_a_step_gets_the_memory_again_that_the_step_before_has_freed():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    assert int(done.stdout) < 100 * STEPS  # of the 2400 pages of a step


def test_what_was_imported_is_old_to_the_garbage_collector():
    looked_at = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, check=True)
    assert looked_at.stdout.split() == [b"0", b"True"]
