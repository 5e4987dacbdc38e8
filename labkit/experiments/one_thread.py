"""A device that reads 100 % while nearly all of it rests: one thread."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import torch

from labkit.bench.machine import card_uuid, cpu_cores
from labkit.bench.workbench import Workbench

N = 512  # of the matrix products on the CPU


def measure(job: Any, bench: Workbench) -> None:
    """Keep the device "busy" for `seconds` with a single thread, and read the usual meter.

    On a CUDA device `torch.cuda._sleep`, a kernel of one block with one thread that counts clock
    ticks; the meter is NVML's utilization, what nvidia-smi shows. On a CPU matrix products on one
    thread; the meter is the process's CPU time over wall time, what `top` shows as %CPU.
    """
    if bench.device.type == "cuda":
        on_cuda(job, bench)
    elif bench.device.type == "cpu":
        on_cpu(job, bench)
    else:
        bench.skip("one thread", f"no kernel of one thread for {bench.device.type}")


def on_cpu(job: Any, bench: Workbench) -> None:
    """One thread and all of them, by the meter and by the work done."""
    before, cores = torch.get_num_threads(), cpu_cores()
    a, b = torch.randn(N, N), torch.randn(N, N)
    try:
        for threads in dict.fromkeys([1, cores]):
            torch.set_num_threads(threads)
            a @ b  # warm-up: threads start
            wall, cpu, done = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - wall < job.seconds / 2:
                a @ b
                done += 1
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            values = {"meter": cpu / wall, "lanes": cores, "used": threads / cores}
            bench.write("threads", seconds=[wall / done], flops=2 * N**3, values=values,
                        threads=threads)  # fmt: skip
    finally:
        torch.set_num_threads(before)
    if cores == 1:
        bench.skip("all threads", "this machine has one core: one thread is all there is")


def on_cuda(job: Any, bench: Workbench) -> None:
    """One thread on the whole card, by NVML's meter."""
    card = torch.cuda.get_device_properties(bench.device)
    lanes = card.multi_processor_count * card.max_threads_per_multi_processor
    ticks = 2_000_000  # about a millisecond each
    readings = []
    started = time.perf_counter()
    meter = nvml_meter(card_uuid(bench.device))
    while (now := time.perf_counter() - started) < job.seconds:
        for _ in range(20):
            torch.cuda._sleep(ticks)
        bench.synchronize()
        reading = meter()
        if reading is not None and now > job.seconds / 2:  # its window has filled by then
            readings.append(reading)
    if not readings:
        bench.skip("one thread", "NVML does not tell this card's utilization")
        return
    values = {"meter": statistics.median(readings), "lanes": lanes, "used": 1 / lanes}
    bench.write("threads", values=values, threads=1)


def nvml_meter(uuid: str) -> Any:
    """Return a function that reads the card's utilization, 0 to 1; None where it is not told."""
    import pynvml

    card = None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> float | None:
        with contextlib.suppress(pynvml.NVMLError):
            if card is not None:
                return pynvml.nvmlDeviceGetUtilizationRates(card).gpu / 100
        return None

    return read
