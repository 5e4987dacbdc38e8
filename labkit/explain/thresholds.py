"""Every threshold of the diagnosis, in one place, each with its source.

"Calibrated" means: set on the calibration half of the fault set (its severities and seeds are kept
apart from those the set is scored on) so that no healthy run of that half crosses it. Shares are of
wall time, 0 to 1.
"""

from __future__ import annotations

# -- when a loss is worth a name -----------------------------------------------------------------

# A loss below this is not named. Healthy runs of the calibration half came to about 0.1 for input
# (the hand-over from a worker, and its share of the cores), 0.01 for transfer, 0.13 for launch
# (every eager model dispatches, and the x-ray adds its own cost), 0.08 for memory_bandwidth and
# 0.13 for precision (BF16 timed on a machine with neighbours); the mildest planted faults of that
# half are seen to cost about 0.2.
WORTH_NAMING = {
    "input": 0.13,
    "transfer": 0.10,
    "launch": 0.16,
    "memory_bandwidth": 0.12,
    "precision": 0.15,
}

# -- when no verdict is given --------------------------------------------------------------------

# Fewer measured steps than this give no verdict: the bootstrap below needs a distribution, and the
# first steps are warm-up (lab/run.py leaves out 3 or more).
MIN_STEPS = 12

# The verdict must come out the same in this share of resampled runs. Two of three: below that the
# top two losses are as good as tied.
MIN_CONFIDENCE = 0.60
RESAMPLES = 60  # enough to resolve a confidence of 0.60 to within 0.06 (binomial standard error)

# Confidence in "healthy" at the most where nothing looked inside the compute: a coin toss.
UNSEEN = 0.5

# Share of wall time in which programs that are not part of the run had the core of the model's
# thread. Above this nothing is called healthy, and no loader with workers slow.
FOREIGN_LOAD = 0.20

# -- inside the compute --------------------------------------------------------------------------

# What 16-bit formats gain on Tensor Cores at the least: the low end of the published 2x to 8x
# (PyTorch and NVIDIA mixed-precision guides). Used only for traces, where nothing can be measured.
TENSOR_CORE_GAIN = 2.0

# What fusing saves of the time in elementwise kernels, at the least: two passes made one. Used
# only where kernels are known by name alone; on a CPU the chains are counted.
FUSION_SAVES = 0.5

# An x-ray whose kernels take this many times the compute that the run's own events measured (or
# this small a part of it) contradicts them. CUDA graphs hide kernels from some profilers.
DISAGREE_OVER, DISAGREE_UNDER = 1.5, 0.05
