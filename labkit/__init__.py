"""labkit: why is my GPU idle, and what do I change?

    import labkit as lk
    run = lk.run(lk.Pipeline(num_workers=4))

Every public name is loaded when it is first used, so that `import labkit` is quick and no torch
comes with it: what is measured runs in a process of its own.
"""

from importlib import import_module

from labkit.wiring import ABOVE

__version__ = "0.1.0"

_PUBLIC = {  # the public names, by the module of labkit that holds them
    "diagnosis.cost": "cost",
    "diagnosis.diagnosis": "diagnose",
    "diagnosis.instruments": "instruments",
    "diagnosis.prediction": "predict",
    "diagnosis.public_traces": "public_trace",
    "diagnosis.trace": "trace",
    "course.challenge": "challenge",
    "course.claims": "check",
    "course.mystery": "mystery",
    "course.score": "guess score",
    "course.slow_script": "same_training slow_script",
    "results.library": "load recorded",
    "results.hardware": "machine training_arguments",
    "results.published": "published",
    "results.ranks": "Ranks",
    "results.record": "RecordError",
    "results.run": "Run",
    "results.script": "script",
    "results.shipped": "glossary",
    "view.drawings": "anatomy annotated",
    "view.ladder": "Ladder Scaling",
    "view.measuring": "measure",
    "view.panels": "cost_panel panel ranks_panel replay_panel",
    "view.rows_figure": "plot",
    "view.run_figure": "beside",
    "view.running": "distributed improve replay run sweep tune",
    "view.wandb_log": "to_wandb",
    "view.watch_live": "watch",
    "spec": "Pipeline",
}
_MODULES = {name: f"labkit.{place}" for place, names in _PUBLIC.items() for name in names.split()}
__all__ = list(_MODULES)

# What a result of a lower floor can do with what is defined above it: see `labkit.wiring`
ABOVE.update(
    {
        "Ranks.diagnose": "labkit.diagnosis.rank_verdict:diagnose",
        "Ranks.plot": "labkit.view.several_figures:draw_ranks",
        "Ranks.times": "labkit.diagnosis.rank_verdict:rank_times",
        "RankRun.plot": "labkit.view.run_figure:draw",
        "Run.breakdown": "labkit.diagnosis.facts:breakdown",
        "Run.lines": "labkit.diagnosis.hot_lines:lines",
        "Run.mbu": "labkit.diagnosis.efficiency:mbu",
        "Run.mfu": "labkit.diagnosis.efficiency:mfu",
        "Run.mfu_against": "labkit.diagnosis.efficiency:mfu_against",
        "Run.peak": "labkit.diagnosis.efficiency:peak",
        "Run.diagnose": "labkit.diagnosis.diagnosis:diagnose",
        "Run.plot": "labkit.view.run_figure:draw",
        "Run.xray": "labkit.diagnosis.trace:xray_of",
        "Run.xray_event": "labkit.diagnosis.trace:xray_line",
        "rows": "labkit.view.rows_figure:plot",
        "Sweep.plot": "labkit.view.several_figures:draw_sweep",
        "Breakdown.plot": "labkit.view.analysis_figures:draw_trace",
        "TraceComparison.plot": "labkit.view.analysis_figures:draw_comparison",
        "RankTraces.plot": "labkit.view.analysis_figures:draw_ranks",
        "Lines.plot": "labkit.view.run_figure:draw_lines",
        "Instruments.plot": "labkit.view.analysis_figures:draw_instruments",
        "Display": "labkit.view.display:Display",
        "PublicTrace.plot": "labkit.view.analysis_figures:draw_reference",
    }
)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*__all__, "__version__"])
