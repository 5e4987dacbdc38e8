"""labkit: why is my GPU idle, and what do I change?

    import labkit as lk
    run = lk.run(lk.Pipeline(num_workers=4))

A public name is imported when it is first used. So `import labkit` is quick and does not import
torch: what is measured runs in a process of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; `_HOMES` says the same to Python
    from labkit.api import Ranks, Run, diagnose, load, recorded
    from labkit.course.challenges import challenge
    from labkit.course.guess import check, guess
    from labkit.diagnosis.cost import cost
    from labkit.prediction.prediction import predict
    from labkit.results.hardware import machine
    from labkit.results.script import script
    from labkit.results.templates import published
    from labkit.spec import Pipeline
    from labkit.stamps.record import RecordError
    from labkit.traces.public import public_trace
    from labkit.traces.read import trace
    from labkit.view.measuring import measure, peaks
    from labkit.view.panel import panel
    from labkit.view.rows_figure import plot
    from labkit.view.running import distributed, improve, run, sweep, tune
    from labkit.view.watch_live import watch
    from labkit.watching.headroom import headroom

__version__ = "0.1.0"

_HOMES = {  # public name: the module that defines it
    "challenge": "labkit.course.challenges",
    "check": "labkit.course.guess",
    "cost": "labkit.diagnosis.cost",
    "diagnose": "labkit.api",
    "distributed": "labkit.view.running",
    "guess": "labkit.course.guess",
    "headroom": "labkit.watching.headroom",
    "improve": "labkit.view.running",
    "load": "labkit.api",
    "machine": "labkit.results.hardware",
    "measure": "labkit.view.measuring",
    "panel": "labkit.view.panel",
    "peaks": "labkit.view.measuring",
    "Pipeline": "labkit.spec",
    "plot": "labkit.view.rows_figure",
    "predict": "labkit.prediction.prediction",
    "public_trace": "labkit.traces.public",
    "published": "labkit.results.templates",
    "Ranks": "labkit.api",
    "recorded": "labkit.api",
    "RecordError": "labkit.stamps.record",
    "Run": "labkit.api",
    "run": "labkit.view.running",
    "script": "labkit.results.script",
    "sweep": "labkit.view.running",
    "trace": "labkit.traces.read",
    "tune": "labkit.view.running",
    "watch": "labkit.view.watch_live",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
