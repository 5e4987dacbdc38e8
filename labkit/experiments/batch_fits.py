"""Whether a pipeline can train at one batch size within a limit on memory."""

from __future__ import annotations

from typing import Any

from labkit.bench import memory_limit
from labkit.bench.loop import Trainer
from labkit.bench.model_size import noise_batch, plain_job
from labkit.bench.resolve_config import resolve_config
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Train `steps` steps of `pipeline` at `batch_size` under a limit; write whether it went.

    The limit is `limit_gib` (None: what is free on the card; on a CPU a stated 0.5 GiB), less
    `margin` of it. Batches are random images: no loader, no files. A refused allocation is an
    answer here, no failure; every other error is one. An empty pipeline is a small CNN's.
    """
    limit_bytes = int((job.limit_gib or 0) * 2**30)
    limit_bytes = limit_bytes or memory_limit.default_limit_bytes(bench.device)
    size = {"batch_size": job.batch_size}
    if job.pipeline:
        plan, _ = resolve_config({**job.pipeline, **size}, bench.device)
    else:
        plan = plain_job(bench.device, **size)
    limit = memory_limit.impose(bench.device, int(limit_bytes * (1 - job.margin)))
    done, why = 0, None
    try:
        trainer = Trainer(plan, bench.device)
        images, labels = noise_batch(plan)
        for done in range(job.steps):
            bench.stage(f"batch {job.batch_size}: step", done, job.steps)
            trainer.compute(*trainer.to_device(images, labels), update=True)
            bench.synchronize()
            limit.check()
        done = job.steps
    except (RuntimeError, MemoryError) as error:
        if not memory_limit.refused(error):
            raise
        why = memory_limit.in_words(error)
    limit.lift()
    bench.write("fits", batch_size=job.batch_size, values={
        "fits": why is None, "why": why, "steps": done, "peak_bytes": limit.used(),
        "limit_bytes": limit_bytes, "margin": job.margin, "how": limit.how,
    })  # fmt: skip
