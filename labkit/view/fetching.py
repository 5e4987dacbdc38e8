"""`lk.public_trace`: a trace of a real GPU that others published, fetched and broken down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from labkit.results.public_files import NOT_FETCHED, AnotherFile
from labkit.traces.breakdown import Breakdown
from labkit.traces.file import TraceError
from labkit.traces.public import Catalogue, PublicTrace, catalogue, known_trace
from labkit.traces.ranks import RankTraces
from labkit.traces.read import trace
from labkit.view.display import Display


def public_trace(name: str | None = None) -> Breakdown | RankTraces | PublicTrace | Catalogue:
    """List the public traces of real GPUs, or fetch the one called `name` and break it down.

    Its source names hardware and repository. Where the trace is neither here nor can be fetched:
    its PublicTrace, whose numbers say what they are. ValueError: an unknown name. TraceError: the
    file that came is not the one that was published; it is not kept.
    """
    if name is None:
        return catalogue()
    known = known_trace(name)
    try:
        path = known.here or _fetched(known)
    except NOT_FETCHED as why:
        return replace(known, missing=known.not_fetched(why))
    except AnotherFile as why:
        raise TraceError(str(why)) from why
    return replace(trace(path), source=f"{name}: {known.hardware}, {known.repository}")


def _fetched(known: PublicTrace) -> Path:
    """Fetch a trace, and say so meanwhile."""
    shown = Display()
    shown.line(f"fetching {known.name} from {known.repository}")
    try:
        return known.fetched()
    finally:
        shown.final()
