"""labkit: why is my GPU idle, and what do I change?

    import labkit as lk
    run = lk.run(lk.Pipeline(num_workers=4))

Every public name is loaded when it is first used, so that `import labkit` is quick and no torch
comes with it: experiments run in a process of their own.
"""

from importlib import import_module

__version__ = "0.1.0"

_NAMES = {
    "Ladder": "labkit.show.ladder",
    "Pipeline": "labkit.lab.pipeline",
    "Ranks": "labkit.lab.ranks",
    "Run": "labkit.lab.run",
    "Scaling": "labkit.show.scaling",
    "RecordError": "labkit.lab.record",
    "beside": "labkit.show.beside_figure",
    "challenge": "labkit.learn.challenge",
    "cost": "labkit.explain.cost",
    "cost_panel": "labkit.show.cost_view",
    "distributed": "labkit.show.distributing",
    "guess": "labkit.learn.guess",
    "instruments": "labkit.explain.instruments",
    "knee": "labkit.explain.knee",
    "largest_batch": "labkit.show.batch_finding",
    "load": "labkit.lab.load",
    "diagnose": "labkit.explain.diagnosis",
    "trace": "labkit.explain.trace",
    "losses": "labkit.explain.losses",
    "machine": "labkit.lab.machine",
    "measure": "labkit.show.measuring",
    "measure_panel": "labkit.show.measure_panel",
    "mystery": "labkit.learn.mystery",
    "panel": "labkit.show.panel",
    "predict": "labkit.explain.prediction",
    "ranks_panel": "labkit.show.ranks_panel",
    "recorded": "labkit.lab.recordings",
    "replay": "labkit.show.replaying",
    "replay_panel": "labkit.show.replaying",
    "roofline": "labkit.explain.roofline",
    "run": "labkit.show.running",
    "same_training": "labkit.lab.slow_script",
    "slow_script": "labkit.show.capstone",
    "score": "labkit.learn.score",
    "sweep": "labkit.show.running",
    "training_arguments": "labkit.lab.training_arguments",
    "tune": "labkit.show.tuning",
    "to_wandb": "labkit.show.wandb_log",
    "watch": "labkit.show.watching",
}

__all__ = list(_NAMES)


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*__all__, "__version__"])
