"""What CPU use and GPU counters, seen from outside a script, can tell about its bottleneck.

Nobody outside knows when the loop waits: so confidence is low or medium, or it is `unsure`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.diagnosis.facts import LESSONS

START_SHARE, START_S = 0.2, 3.0  # of the script is start-up: imports, the model, workers
MIN_SAMPLES = 8  # two seconds
RUNS = 0.7  # share of samples in which a process that hardly ever waits has work
WAITS = 0.4  # and one that waits for more than half of the time
FOREIGN = 0.5  # cores of other programs that are worth a word
BUSY_GPU = 0.8  # NVML's share of time with a kernel running; see notebook 02 on what it hides
GROWN_GIB = 0.2  # memory that a script's own CUDA context takes at the least
MEANS = {"main_cores": "main", "main_runs": "main_runs", "worker_cores": "workers",
         "workers_run": "workers_run", "other_cores": "others",
         "machine_cores": "machine"}  # fmt: skip


def judge(samples: list[Any]) -> dict[str, Any]:
    """Name the bottleneck as far as the samples of `labkit.bench.telemetry` reach.

    The confidence is "low", "medium" or "none"; with it come the means behind it: cores used, and
    shares of time in which the script and its workers had work.
    """
    end = samples[-1].at_s if samples else 0.0
    kept = [s for s in samples if s.at_s > min(START_S, START_SHARE * end)]
    means = {name: _mean([getattr(s, of) for s in kept]) for name, of in MEANS.items()}
    means["workers"] = int(np.median([s.worker_count for s in kept])) if kept else 0
    card = _own_card(samples)
    means["gpu_utilization"] = _mean([_gpu_busy(s.gpus[card]) for s in kept]) if card else None
    means["samples"] = len(kept)
    name, confidence, evidence, advice = _verdict(means)
    settle = "`for batch in lk.watch(loader):` in the script would settle it."
    return {
        "bottleneck": name,
        "confidence": confidence,
        "evidence": f"{evidence}.",
        "advice": f"{advice} {settle}".strip(),
        **{key: round(v, 3) if isinstance(v, float) else v for key, v in means.items()},
    }


def _own_card(samples: list[Any]) -> str | None:
    """Return the UUID of the GPU that the script used, by its processes or by memory it took."""
    grown = {}  # in a container the driver's process ids are the host's
    for uuid in samples[0].gpus if samples else ():
        seen = [s.gpus[uuid] for s in samples]
        if any(gpu["own"] for gpu in seen):
            return uuid
        held = [gpu["memory_gib"] for gpu in seen if gpu["memory_gib"] is not None]
        if held and max(held) - held[0] > GROWN_GIB:
            grown[uuid] = max(held) - held[0]
    return max(grown, key=grown.get, default=None)


def _gpu_busy(seen: dict[str, Any]) -> float | None:
    """Return NVML's utilization in a sample: its buffered samples, or what nvidia-smi prints."""
    buffered = _mean([share for _, share in seen["gpu"] or ()])
    return seen["gpu_now"] if buffered is None else buffered


def _verdict(m: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return the bottleneck, the confidence, the evidence without its full stop, the advice."""
    if m["samples"] < MIN_SAMPLES:
        return "unsure", "none", "the script ended too soon to tell", ""
    cpu = f"main process at work {m['main_runs']:.0%} of the time ({m['main_cores']:.1f} cores)"
    if m["workers"]:
        cpu += f", {m['workers']} workers {m['workers_run']:.0%} ({m['worker_cores']:.1f} cores)"
    foreign = m["machine_cores"] - m["main_cores"] - m["worker_cores"] - m["other_cores"]
    cpu += f"; other programs used {foreign:.1f} cores" if foreign > FOREIGN else ""
    more = "Raise num_workers, or do less work per item"
    feed = more if m["workers"] else "Give the DataLoader workers; `labkit tune` says how many"
    feed += f"; {_section('input')}."
    main_busy, main_waits = m["main_runs"] >= RUNS, m["main_runs"] < WAITS
    workers_busy = m["workers"] and m["workers_run"] >= RUNS
    workers_wait = m["workers_run"] < WAITS
    if (busy := m["gpu_utilization"]) is None:
        seen = f"no GPU in use; {cpu}"
        if workers_busy and main_waits:
            return "input", "medium", f"{seen}: the script waited for its workers", feed
        if main_waits:
            return "input", "low", f"{seen}: it waited, for storage, a network or a sleep", feed
        if m["workers"] and main_busy and workers_wait:
            return "compute", "low", seen, "The model is the limit on this CPU."
        seen += ": preparing data and training look the same from outside"
        return "unsure", "none", seen, ""
    seen = f"NVML saw a kernel running for {busy:.0%} of the time; {cpu}"
    if busy >= BUSY_GPU:
        advice = "Notebooks 04, 05 and 07 make the device's own work cheaper."
        return "compute", "medium", seen, advice
    if workers_busy:
        return "input", "medium", seen, feed
    if main_waits and workers_wait:
        return "input", "low", f"{seen}: all wait, for storage or a network", feed
    if m["workers"] and main_busy:
        return "launch", "low", seen, f"Launch fewer and larger kernels; {_section('launch')}."
    return "input", "low", f"{seen}: busy with data, or with issuing work", feed


def _section(name: str) -> str:
    number, heading = LESSONS[name]
    return f"notebook {number}, section {heading}"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
