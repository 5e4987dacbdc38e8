"""Every rule of the diagnosis: each computes what one cause of lost device time costs.

A rule is a function that takes the `Evidence` and returns a `Finding`, however little it costs, or
None. Its docstring has the cause that the finding names, the condition, and the thresholds in it by
their names in `thresholds.py`. `ranking.py` adds up the losses of each bottleneck, and gives those
a name that reach WORTH_NAMING.

Several ranks have rules of their own, in `rank_verdict.py`; `doubts.py` has the reasons for no
verdict.
"""

from __future__ import annotations

from labkit.diagnosis import (
    body_rules,
    compute_rules,
    idle_rules,
    launch_rules,
    loop_rules,
    worker_rules,
)

RULES = (
    # The device has nothing to compute
    idle_rules.waiting_for_data,  # of rules for why: `worker_state`, `worker_rules`
    idle_rules.cores_taken_by_workers,
    idle_rules.copies,
    idle_rules.host_work,
    idle_rules.pauses,
    # A watched loop does something else than training
    *body_rules.IN_THE_BODY,
    body_rules.copies_in_the_body,
    body_rules.another_loader,
    body_rules.own_optimizer,
    loop_rules.elsewhere,
    loop_rules.longer_and_longer,
    loop_rules.too_many_threads,
    # A profiler's trace
    idle_rules.outside_pytorch,
    idle_rules.collectives,
    # The host is too slow for a device that looks busy
    launch_rules.tiny_operators,
    launch_rules.noisy_neighbour,
    launch_rules.gaps_between_kernels,
    launch_rules.idle_while_busy,
    # The device computes, but not as it could
    compute_rules.full_precision,
    compute_rules.no_tensor_cores,
    compute_rules.unaligned_sizes,
    compute_rules.elementwise_chains,
    compute_rules.elementwise_kernels,
    compute_rules.padding,
)
# What is said whatever it costs
WARNINGS = (
    loop_rules.kept,
    compute_rules.held_down,
    worker_rules.memory_growth,
    loop_rules.double_precision,
)
