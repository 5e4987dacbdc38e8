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
    "Run": "labkit.lab.run",
    "RecordError": "labkit.lab.record",
    "instruments": "labkit.explain.instruments",
    "load": "labkit.lab.load",
    "diagnose": "labkit.explain.diagnosis",
    "trace": "labkit.explain.trace",
    "machine": "labkit.lab.machine",
    "measure": "labkit.show.measuring",
    "mystery": "labkit.learn.mystery",
    "panel": "labkit.show.panel",
    "run": "labkit.show.running",
    "sweep": "labkit.show.running",
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
