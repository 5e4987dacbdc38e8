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
    "analysis.cost": "cost",
    "analysis.diagnosis": "diagnose",
    "analysis.instruments": "instruments",
    "analysis.losses": "losses",
    "analysis.prediction": "predict",
    "analysis.public_traces": "public_trace",
    "analysis.trace": "trace",
    "course.challenge": "challenge",
    "course.claims": "check",
    "course.mystery": "mystery",
    "course.score": "guess score",
    "course.slow_script": "same_training slow_script",
    "results.library": "load recorded",
    "results.machine": "machine training_arguments",
    "results.published": "published",
    "results.ranks": "Ranks",
    "results.record": "RecordError",
    "results.run": "Run",
    "results.script": "script",
    "results.shipped": "glossary",
    "show.drawings": "anatomy annotated",
    "show.ladder": "Ladder Scaling",
    "show.measuring": "measure",
    "show.panels": "cost_panel panel ranks_panel replay_panel",
    "show.rows_figure": "plot",
    "show.run_figure": "beside",
    "show.running": "distributed improve replay run sweep tune",
    "show.wandb_log": "to_wandb",
    "show.watching": "watch",
    "spec": "Pipeline",
}
_MODULES = {name: f"labkit.{place}" for place, names in _PUBLIC.items() for name in names.split()}
__all__ = list(_MODULES)

# What a result of a lower floor can do with what is defined above it: see `labkit.wiring`
ABOVE.update(
    {
        "Ranks.diagnose": "labkit.analysis.ranks:diagnose",
        "Ranks.plot": "labkit.show.several_figures:draw_ranks",
        "Ranks.times": "labkit.analysis.ranks:rank_times",
        "RankRun.plot": "labkit.show.run_figure:draw",
        "Run.breakdown": "labkit.analysis.facts:breakdown",
        "Run.lines": "labkit.analysis.lines:lines",
        "Run.mbu": "labkit.analysis.efficiency:mbu",
        "Run.mfu": "labkit.analysis.efficiency:mfu",
        "Run.mfu_against": "labkit.analysis.efficiency:mfu_against",
        "Run.peak": "labkit.analysis.efficiency:peak",
        "Run.diagnose": "labkit.analysis.diagnosis:diagnose",
        "Run.plot": "labkit.show.run_figure:draw",
        "Run.xray": "labkit.analysis.trace:xray_of",
        "Run.xray_event": "labkit.analysis.trace:xray_line",
        "rows": "labkit.show.rows_figure:plot",
        "Sweep.plot": "labkit.show.several_figures:draw_sweep",
        "Breakdown.plot": "labkit.show.analysis_figures:draw_trace",
        "TraceComparison.plot": "labkit.show.analysis_figures:draw_comparison",
        "RankTraces.plot": "labkit.show.analysis_figures:draw_ranks",
        "Lines.plot": "labkit.show.run_figure:draw_lines",
        "Instruments.plot": "labkit.show.analysis_figures:draw_instruments",
        "Display": "labkit.show.display:Display",
        "PublicTrace.plot": "labkit.show.analysis_figures:draw_reference",
        "Losses.plot": "labkit.show.analysis_figures:draw_losses",
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
