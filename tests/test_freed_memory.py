"""What the C library does with memory that a step frees: the bench has it kept."""

import platform
import subprocess
import sys

import pytest

STEPS = 20
FAULTS = f"""
import resource
import sys

import torch

from labkit.bench import machine

if sys.argv[1] == "kept":
    machine.keep_freed_memory()


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
    code = [sys.executable, "-c", FAULTS]
    faults = int(subprocess.run([*code, "kept"], capture_output=True, check=True).stdout)
    assert faults < 100 * STEPS  # of the 2400 pages of a step
