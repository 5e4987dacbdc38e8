"""What a kernel asks of the processes of a run, as the files in the run's folder hold it.

`launch.json` is the supervisor's plan: `kernel_pid` and the `system` where that pid counts
(`process.family.this_system`), `idle_s` (how long a standby waits for its run; None: it is there),
and the commands `bench` and `telemetry`, to which the supervisor adds its own pid.

`spec.json` is the bench's order: the `run`, labkit's folder of this user (`cache`), a `fault` to
plant (`bench.carry_out.prepare`), and what the log's first event has too: the `pipeline`
(the knobs; of a function only its device), and
- of a function to measure its name (`measure`) and the arguments of each call (`points`),
- of ranks `ranks`, `no_sync`, and `starve` ({rank: its own values of knobs}).
A user's own dataset or function is found by `source`: its `payload` (a file in the run's folder),
their `cwd`, and the `path` to import from.
"""

from __future__ import annotations

from typing import Any

Order = dict[str, Any]
"""An order, or a part of one."""
