"""What CPU use and GPU counters, seen from outside a script, can tell about its bottleneck.

Less than the loop's own stamps: nobody outside knows when the loop waits. So the confidence is a
word, low or medium, and `unsure` where two causes look the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.analysis.finding import NOTEBOOKS

START_SHARE, START_S = 0.2, 3.0  # of the script is start-up: imports, the model, workers
MIN_SAMPLES = 8  # two seconds
RUNS = 0.7  # share of looks in which a process that hardly ever waits has work
WAITS = 0.4  # and one that waits for more than half of the time
FOREIGN = 0.5  # cores of other programs that are worth a word
BUSY_GPU = 0.8  # NVML's share of time with a kernel running; see notebook 02 on what it hides
GROWN_GIB = 0.2  # memory that a script's own CUDA context takes at the least

SETTLE = "`for batch in lk.watch(loader):` in the script would settle it."
MORE_WORKERS = "Raise num_workers, or do less work per item"


def judge(samples: list[Any]) -> dict[str, Any]:
    """Name the bottleneck as far as the samples of `labkit.bench.outside` reach.

    Returns:
        `bottleneck`, `confidence` ("low", "medium", or "none" where it is unsure), `evidence`,
        `advice`, and the means behind them: `main_cores`, `worker_cores` (of all workers
        together), `main_runs` and `workers_run` (share of time with work for a core), `workers`,
        `gpu_utilization` (NVML, 0 to 1), `machine_cores`, `samples`.
    """
    end = samples[-1].at_s if samples else 0.0
    kept = [s for s in samples if s.at_s > min(START_S, START_SHARE * end)]
    card = own_card(samples)
    means = {
        "main_cores": _mean([s.main for s in kept]),
        "main_runs": _mean([s.main_runs for s in kept]),
        "worker_cores": _mean([s.workers for s in kept]),
        "workers_run": _mean([s.workers_run for s in kept]),
        "workers": int(np.median([s.worker_count for s in kept])) if kept else 0,
        "other_cores": _mean([s.others for s in kept]),
        "machine_cores": _mean([s.machine for s in kept]),
        "gpu_utilization": _mean([gpu_busy(s, card) for s in kept]) if card else None,
        "samples": len(kept),
    }
    if len(kept) < MIN_SAMPLES:
        return _said("unsure", "none", "the script ended too soon to tell.", "", means)
    return _of_gpu(means) if means["gpu_utilization"] is not None else _of_cpu(means)


def own_card(samples: list[Any]) -> str | None:
    """Return the UUID of the GPU that the script used, by its processes or by memory it took."""
    if not samples:
        return None
    for uuid in samples[-1].gpus:
        if any(s.gpus.get(uuid, {}).get("own") for s in samples):
            return uuid
    grown = {}  # in a container the driver's process ids are the host's
    for uuid in samples[0].gpus:
        held = [s.gpus[uuid].get("memory_gib") for s in samples if uuid in s.gpus]
        held = [gib for gib in held if gib is not None]
        if held and max(held) - held[0] > GROWN_GIB:
            grown[uuid] = max(held) - held[0]
    return max(grown, key=grown.get) if grown else None


def gpu_busy(sample: Any, uuid: str) -> float | None:
    """Return NVML's utilization in a sample: its buffered samples, or what nvidia-smi prints."""
    seen = sample.gpus.get(uuid, {})
    buffered = [share for _, share in seen.get("gpu") or ()]
    return float(np.mean(buffered)) if buffered else seen.get("gpu_now")


def _of_gpu(m: dict[str, Any]) -> dict[str, Any]:
    gpu = f"NVML saw a kernel running for {m['gpu_utilization']:.0%} of the time"
    if m["gpu_utilization"] >= BUSY_GPU:
        advice = "Notebooks 04, 05 and 07 make the device's own work cheaper."
        return _said("compute", "medium", f"{gpu}; {_cpu(m)}.", advice, m)
    if m["workers"] and m["workers_run"] >= RUNS:
        return _input("medium", f"{gpu} while the loader workers were busy: {_cpu(m)}.", m)
    if m["main_runs"] < WAITS and m["workers_run"] < WAITS:
        text = f"{gpu}, and neither the script nor a worker had much to do: {_cpu(m)}."
        return _input("low", f"{text} They wait, for storage or a network.", m)
    text = f"{gpu} while the main process was busy, with data or with issuing work: {_cpu(m)}."
    if m["workers"] and m["main_runs"] >= RUNS:
        advice = f"Launch fewer and larger kernels; notebook {NOTEBOOKS['07']}."
        return _said("launch", "low", text, advice, m)
    return _input("low", text, m)


def _of_cpu(m: dict[str, Any]) -> dict[str, Any]:
    if m["workers"] and m["workers_run"] >= RUNS and m["main_runs"] < WAITS:
        text = f"no GPU in use; the script waited while its workers were busy: {_cpu(m)}."
        return _input("medium", text, m)
    if m["main_runs"] < WAITS:
        text = f"no GPU in use, and the script waited for most of the time: {_cpu(m)}."
        return _input("low", f"{text} For data from storage, a network or a sleep.", m)
    if m["workers"] and m["main_runs"] >= RUNS and m["workers_run"] < WAITS:
        text = f"no GPU in use; the main process was busy and its workers were not: {_cpu(m)}."
        return _said("compute", "low", text, "The model is the limit on this CPU.", m)
    text = f"no GPU in use; preparing data and training look the same from outside: {_cpu(m)}."
    return _said("unsure", "none", text, "", m)


def _input(confidence: str, evidence: str, m: dict[str, Any]) -> dict[str, Any]:
    advice = MORE_WORKERS if m["workers"] else "Give the DataLoader workers: num_workers=4"
    return _said("input", confidence, evidence, f"{advice}; notebook {NOTEBOOKS['03']}.", m)


def _cpu(m: dict[str, Any]) -> str:
    text = f"main process at work {m['main_runs']:.0%} of the time ({m['main_cores']:.1f} cores)"
    if m["workers"]:
        text += f", {m['workers']} workers {m['workers_run']:.0%} ({m['worker_cores']:.1f} cores)"
    foreign = m["machine_cores"] - m["main_cores"] - m["worker_cores"] - m["other_cores"]
    return text + (f"; other programs used {foreign:.1f} cores" if foreign > FOREIGN else "")


def _said(name: str, confidence: str, evidence: str, advice: str, m: dict) -> dict[str, Any]:
    evidence = evidence if evidence.endswith(".") else f"{evidence}."
    return {
        "bottleneck": name,
        "confidence": confidence,
        "evidence": evidence,
        "advice": " ".join(filter(None, [advice, SETTLE])),
        **{key: round(value, 3) if isinstance(value, float) else value for key, value in m.items()},
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
