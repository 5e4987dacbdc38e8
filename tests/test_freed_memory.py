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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
def test_a_step_gets_the_memory_again_that_the_step_before_has_freed():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    assert int(done.stdout) < 100 * STEPS  # of the 2400 pages of a step
