"""labkit: why is my GPU idle, and what do I change?

    import labkit as lk
    run = lk.run(lk.Pipeline(num_workers=4))

Every public name is loaded when it is first used, so that `import labkit` is quick and no torch
comes with it: experiments run in a process of their own.
"""

from importlib import import_module

from labkit.wiring import ABOVE

__version__ = "0.1.0"

_NAMES = {
    "Ladder": "labkit.show.ladder",
    "Pipeline": "labkit.spec",
    "Ranks": "labkit.results.ranks",
    "Run": "labkit.results.run",
    "Scaling": "labkit.show.ladder",
    "RecordError": "labkit.results.record",
    "beside": "labkit.show.run_figure",
    "challenge": "labkit.course.challenge",
    "cost": "labkit.analysis.cost",
    "cost_panel": "labkit.show.panels",
    "distributed": "labkit.show.running",
    "guess": "labkit.course.score",
    "instruments": "labkit.analysis.instruments",
    "knee": "labkit.analysis.knee",
    "largest_batch": "labkit.experiments.largest_batch",
    "load": "labkit.results.library",
    "diagnose": "labkit.analysis.diagnosis",
    "trace": "labkit.analysis.trace",
    "losses": "labkit.analysis.losses",
    "machine": "labkit.results.machine",
    "measure": "labkit.experiments.measure",
    "measure_panel": "labkit.show.panels",
    "mystery": "labkit.course.mystery",
    "panel": "labkit.show.panels",
    "predict": "labkit.analysis.prediction",
    "ranks_panel": "labkit.show.panels",
    "recorded": "labkit.results.library",
    "replay": "labkit.show.running",
    "replay_panel": "labkit.show.panels",
    "roofline": "labkit.experiments.roofline_points",
    "run": "labkit.show.running",
    "same_training": "labkit.course.slow_script",
    "slow_script": "labkit.course.slow_script",
    "score": "labkit.course.score",
    "sweep": "labkit.show.running",
    "training_arguments": "labkit.results.machine",
    "tune": "labkit.show.tuning",
    "to_wandb": "labkit.show.wandb_log",
    "watch": "labkit.show.watching",
}

__all__ = list(_NAMES)


# What a result of a lower floor can do with what is defined above it: see `labkit.wiring`
ABOVE.update(
    {
        "Measurements.plot": "labkit.experiments.measure:draw",
        "Ranks.diagnose": "labkit.analysis.ranks:diagnose",
        "Ranks.plot": "labkit.show.ranks_figure:draw",
        "Ranks.times": "labkit.analysis.ranks:rank_times",
        "RankRun.plot": "labkit.show.run_figure:draw",
        "Run.breakdown": "labkit.analysis.facts:breakdown",
        "Run.lines": "labkit.analysis.lines:lines",
        "Run.diagnose": "labkit.analysis.diagnosis:diagnose",
        "Run.plot": "labkit.show.run_figure:draw",
        "Run.xray": "labkit.analysis.trace:xray_of",
        "Run.xray_event": "labkit.analysis.trace:xray_line",
        "experiments": "labkit.experiments:EXPERIMENTS",
        "Sweep.plot": "labkit.show.sweep_figure:draw_sweep",
        "Breakdown.plot": "labkit.show.analysis_figures:draw_trace",
        "Instruments.plot": "labkit.show.analysis_figures:draw_instruments",
        "Knee.plot": "labkit.show.analysis_figures:draw_knee",
        "Losses.plot": "labkit.show.analysis_figures:draw_losses",
    }
)


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*__all__, "__version__"])
