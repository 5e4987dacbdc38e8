"""Thresholds of the rules, each with its source. Shares are of wall time, 0 to 1.

"Calibrated" means: set on the calibration half of the fault set (whose severities and seeds are
not those it is scored on) so that no healthy run of that half crosses it. One without a source only
says where a word begins to apply ("a pause", "uneven"): it was set by hand, and the diagnosis's
scores on the fault set and on users' scripts were reached with it.
"""

from labkit.traces.breakdown import WORTH_NAMING_A_STRAGGLER

# Losses worth a name. Healthy runs of the calibration half came to about 0.1 for input (the
# handoff from a worker, and its share of the cores), 0.01 for transfer, 0.13 for launch (every
# eager model dispatches, and the x-ray adds its own cost), 0.08 for memory_bandwidth and 0.13 for
# precision; the mildest faults planted there cost about 0.2. Ranks are not calibrated: two healthy
# gloo ranks on two cores wait for each other 7 to 9 % of the time.
WORTH_NAMING = {
    "input": 0.13,
    "transfer": 0.10,
    "launch": 0.16,
    "host": 0.13,
    "memory_bandwidth": 0.12,
    "precision": 0.15,
    "communication": 0.13,
    "straggler": WORTH_NAMING_A_STRAGGLER,
    "compute": 0.10,  # spent on padding; 1/(1 - 0.10) is beyond the noise of a quiet run
}

# == when no verdict is given ==
MIN_STEPS = 12  # measured, warm-up excluded: the bootstrap needs a distribution
# The verdict must come out the same in this share of resampled runs: below two of three the top
# two losses are as good as tied.
MIN_CONFIDENCE = 0.60
RESAMPLES = 60  # resolve a confidence of 0.60 to within 0.06 (binomial standard error)
MOST_DRAWN = 5_000  # steps of each: of a longer run they are a part
# Seconds of a watched loop: the machine is looked at four times a second, and fewer than
# eight looks may miss a program that takes turns with the loop
LONG_ENOUGH_S = 2.0
UNSEEN = 0.5  # confidence in "healthy" where nothing looked inside the compute: a coin toss
# Share of the cores, of the time in which this program had work, or of its GPU's time (NVML, per
# process) that other programs had, from which a run's times may be theirs: nothing is called
# healthy then, and no loader with workers slow
FOREIGN_LOAD = 0.20
DISTURBS = FOREIGN_LOAD / 2  # above it a run alone may come out otherwise: said with the verdict

# == steps ==
# Waiting comes in stalls where the worst tenth of the steps has more than this of it
WORST_STEPS = 0.1
STALLS = 0.6
# The run itself uses this share of the cores: none is left for another worker that computes
CORES_BUSY = 0.9
# Below this a worker's batch costs the loop what making it would: sending 16 small images took the
# loop 1.2 to 1.9 ms on 2-core VMs (AMD EPYC, Intel Xeon; "handoff" of our own runs), and a loop
# over a TensorDataset (0.5 ms a batch) fell to a fifth of its speed with 1, 2 or 4 workers (medians
# of 14 passes in turn, Xeon); fetched at once it gained 1.2x
HANDOFF_US = 1_500.0

# == a watched loop (calibrated on half of 34 scripts, all but five in the history) ==

BESIDE = 0.25  # of a script's time, outside its training: more than a usual validation takes
LONG = 2.0  # a step is long whose body takes this many ordinary ones
REGULAR = 0.7  # share of the distances between long steps that are alike, where they are periodic
IN_LONG_STEPS = 0.6  # share of a kind of work that falls into long steps, where it makes them
# The last fifth of the steps takes this many times the first. A virtual machine changes its speed:
# a loop of even steps was called drifting at 1.3 in one run of four
DRIFT = 1.5
MOST_OF_LOADING = 0.5  # share of the time of making batches in one function: that is the cause
FEWEST_LINES = 20  # samples, of loading, that may speak for lines

# == what the workers show; from public reports, not calibrated ==
COMPUTES = 0.8  # CPU time over wall time of a worker that hardly ever waits
MOSTLY_WAITS = 0.5  # and below this it is said to wait
WORKERS_REST = 0.5  # of the time without work, while the loop waits

# == inside the compute ==
# What 16-bit formats gain on Tensor Cores at the least (PyTorch and NVIDIA mixed-precision guides:
# 2x to 8x). Only for traces, where nothing can be measured.
HALF_SAVED = 0.5  # of the time of what then runs there, at a gain of 2x

# A device that is busy for BUSY of the time, and meanwhile does less than LOW_MFU of its peak: less
# than any of the four large models in table 3 of Chowdhery et al., "PaLM" (GPT-3: 21.3 %)
BUSY = 0.5
LOW_MFU = 0.2

# A host that stands at a copy, and moves fewer bytes a second than this, waits for what the device
# has queued. On an H200 (PCIe 5) float32 batches of 147 MiB in pageable memory moved at 3.2 GB/s;
# half of that leaves room for older hosts
COPIES_BYTES_S = 1.5e9
# Above this share of the time a thread that pins takes longer than the rest of a step. On an H200,
# with copies at 92 %, pinned memory brought 0.8x; at 34 %, 1.6x
COPIES_LEAD = 0.5

# == second witnesses of a busy GPU ==
# GPM's SM activity over the busy share. NVIDIA's DCGM user guide, "Profiling Metrics": 0.8 or more
# is necessary for an effective use of the GPU, less than 0.5 likely indicates an ineffective one.
SMS_WORK = 0.8
SMS_REST = 0.5
# Mean power over the power limit. ML.ENERGY's power traces (ml-energy/zeus 75a8b93; six models on
# A40, P100, V100 and Quadro RTX 6000): every model drew under 0.30 only where it trained at less
# than a fifth of its best rate (or the host held it back), ResNet-50 and BERT 0.57 and more at any
# batch. In between are memory-bound and small kernels. Not for a limit lowered to what a card draws
# at rest: an A40 held at 100 of its 300 W drew 0.9 of that, whatever it did.
POWER_WORKS = 0.6
POWER_RESTS = 0.3
HELD_DOWN = 0.2  # share of the readings in which heat held the clock down
MIN_READINGS = 2  # of an instrument inside the measured steps: one may straddle their edge
