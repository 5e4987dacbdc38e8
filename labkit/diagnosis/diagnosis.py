"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from labkit.diagnosis import rules
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.efficiency import with_low_mfu
from labkit.diagnosis.facts import BOTTLENECKS, Evidence, Facts, Finding, of_trace, of_traces
from labkit.diagnosis.instruments import Witness, deciding
from labkit.diagnosis.prediction import WORTH, predict
from labkit.diagnosis.public_traces import PublicTrace
from labkit.diagnosis.remedies import typed
from labkit.diagnosis.trace import Breakdown, RankTraces, trace
from labkit.process.events import FILE_NAME
from labkit.results.event_log import of_one_moment
from labkit.results.library import load
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import BODY_NOTE, RecordError
from labkit.results.result import Result, Table, but, copy_buttons, listed
from labkit.spec import GRAPH_MODES

OTHERS = "Other programs"  # what a note on the machine's other load begins with
SHARED = "neighbour"  # the cause of a verdict withheld: others used the device
LOOK_INSIDE = "Look inside a few steps: run it with xray=True and 20 steps or more."
PROFILE = "Record a few steps with torch.profiler, and give the trace to lk.diagnose."


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What holds a run back."""

    findings: tuple[Finding, ...]  # what costs device time, ranked by how much
    # 0 to 1: the share of resampled runs (steps drawn anew with replacement) with the same verdict;
    # of a trace, how far the first loss is ahead of the second or of its threshold
    confidence: float
    source: str  # what it was told from; says RECORDED, and on what, where that was not here
    notes: tuple[str, ...] = ()  # what limits the verdict
    of_pipeline: bool = False  # rather than of somebody's loop or trace

    # fmt: off
    bottleneck = property(lambda self: self.findings[0].name,
                          doc='The first finding\'s, one of `BOTTLENECKS`; "compute" is healthy.')
    rank = property(lambda self: self.findings[0].rank,
                    doc="Of several ranks, the one that holds the others back; None if none does.")
    evidence = property(lambda self: self.findings[0].evidence, doc="Of the first finding.")
    advice = property(lambda self: self.findings[0].advice, doc="What to change first.")
    # fmt: on

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        blamed = self.rank is not None and self.bottleneck != "communication"
        where = f" on rank {self.rank}" if blamed else ""
        return f"{self.bottleneck}{where} ({BOTTLENECKS[self.bottleneck]})"

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON types."""
        findings = [finding.to_dict() for finding in self.findings]
        return {"bottleneck": self.bottleneck, "confidence": round(self.confidence, 3),
                "findings": findings, "source": self.source, "notes": list(self.notes),
                "rank": self.rank}  # fmt: skip

    @property
    def details(self) -> Table:
        """The full report: every finding with its time, evidence and advice, and the notes."""
        return self.table()

    @property
    def three_lines(self) -> tuple[str, str, str]:
        """What holds the run back, why (the numbers of this run), and what to do about it."""
        first = self.findings[0]
        mark = f"{self.source}: " if self.source.startswith("RECORDED") else ""
        what = f"{mark}Bottleneck {self.headline}"
        if first.lost_share:
            what += f": {first.lost_share:.0%} of the time"
        what += f"; confidence {self.confidence:.0%}" if self.confidence else ""
        what += "".join(f". {note}" for note in self.notes if note.startswith(OTHERS))
        do = f"Do: {first.advice}"
        code = first.code.strip()
        if "\n" in code:
            code = "".join(f"\n    {line}" for line in code.splitlines())
        do += f" In PyTorch: {code}" if code else ""
        return what.rstrip("."), f"Why: {first.evidence}", do

    def table(self) -> Table:
        """Return the findings, the costliest first."""
        shown = self.findings[:4]
        rows = [
            (f"{f.name}: {f.cause}", f"{f.lost_share:.0%}", f.evidence, f.advice) for f in shown
        ]
        head = ("finding", "time lost", "evidence", "what to change")
        foot = [f"{self.source}; confidence {self.confidence:.0%}", *self.notes]
        coded = [finding for finding in shown if finding.code]
        for finding in coded:
            foot.append(f"{finding.cause}, in PyTorch:")
            foot += [f"    {line}" for line in finding.code.splitlines()]
        copies = {"PyTorch": coded[0].code} if coded else {}
        if coded and self.of_pipeline:
            copies["labkit"] = but(coded[0].remedies[0].changes)
        title = f"Bottleneck: {self.headline}"
        return Table(rows, head, title, foot, left=(0, 2, 3), copies=copies)

    def __repr__(self) -> str:
        return "\n".join(self.three_lines)

    def _repr_html_(self) -> str:
        what, why, do = (html.escape(line) for line in self.three_lines)
        if link := self.findings[0].link:
            section = f"See notebook {link[:2]}"
            do = do.replace(section, f"<a href='{html.escape(link)}'>{section}</a>", 1)
        text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
        details = self.details
        buttons = copy_buttons(details.copies)
        more = replace(details, copies={})._repr_html_()
        return f"{text}{buttons}<details><summary>all findings</summary>{more}</details>"


def diagnose(what: Any) -> Diagnosis:
    """Name the bottleneck of a Run, Ranks, a record's path (.jsonl, .jsonl.gz or a run's folder).

    Or of a torch.profiler trace (.json, .json.gz), a folder or archive of one for each rank, or
    what `lk.trace` or `lk.public_trace` made of them. Raises RecordError or TraceError (both are a
    ValueError) on one that cannot be used.
    """
    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        record = path.name.endswith((".jsonl", ".jsonl.gz")) or (path / FILE_NAME).exists()
        what = load(path) if record else trace(path)
    if isinstance(what, (Breakdown, RankTraces)):
        facts = of_trace(what) if isinstance(what, Breakdown) else of_traces(what)
        return _verdict(facts, rules.rank(facts), _lead(facts), what.source)
    if isinstance(what, PublicTrace):
        found = Finding(what.bottleneck, "published", what.why, what.missing)
        return Diagnosis((found,), 0.0, what.mark)
    if isinstance(what, Ranks):
        return what.diagnose()
    if isinstance(what, Measurements):
        raise RecordError(
            f"{what.path}: a measured function has rows and no training steps, so there "
            "is nothing to diagnose: lk.load(path) shows its numbers; diagnose a training run."
        )
    found = _of_run(what)
    unseen = what.watched and not what.lines.body
    return replace(found, notes=(BODY_NOTE, *found.notes)) if unseen else found


@of_one_moment
def _of_run(run: Any) -> Diagnosis:
    source, evidence = source_of(run), Evidence(run)
    if doubt := too_short(len(evidence)):
        return Diagnosis((doubt,), 0.0, source)
    facts = evidence.facts()
    findings, confidence = rules.rank(facts), 0.0
    if doubt := _device_shared(run, facts, findings[0]) or _contradiction(facts):
        findings = (doubt, *(f for f in findings if f.name != "compute" or f.lost_share))
    else:
        findings, confidence = resampled(
            len(evidence.sums), lambda rows: rules.rank(evidence.facts(rows)), findings
        )
    return _verdict(facts, with_low_mfu(run, facts, findings), confidence, source, run)


def _lead(facts: Facts) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    _, total = rules.losses(facts)
    nearest = max(loss / limits.WORTH_NAMING[name] for name, loss in total.items())
    if nearest < 1:
        return 1 - nearest
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / nearest, *(loss / first for loss in rest[:1])])


def source_of(run: Any) -> str:
    """Say where a run or ranks were measured."""
    return f"{'RECORDED' if run.recorded else 'measured'} on {run.machine.name}"


def resampled(
    rows: int, judge: Callable[[np.ndarray], tuple[Finding, ...]], found: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], float]:
    """Return the findings, behind a doubt if too close to call, and the confidence in them."""
    draws = np.random.default_rng(0).integers(0, rows, (limits.RESAMPLES, rows))
    again = Counter((first.name, first.rank) for first in (judge(rows)[0] for rows in draws))
    confidence = again[found[0].name, found[0].rank] / limits.RESAMPLES
    if confidence >= limits.MIN_CONFIDENCE:
        return found, confidence
    names = list(dict.fromkeys(name for (name, _rank), _count in again.most_common()))
    seen = (
        f"only {confidence:.0%} of the resampled runs give the same verdict (threshold "
        f"{limits.MIN_CONFIDENCE:.0%}); the candidates are {' and '.join(names[:2])}."
    )
    change = "Run longer (more steps), on a quiet machine."
    return (Finding("unsure", "too close to call", seen, change), *found), confidence


def _verdict(
    facts: Facts,
    findings: tuple[Finding, ...],
    confidence: float,
    source: str,
    run: Any = None,
) -> Diagnosis:
    """Return a diagnosis that trusts a busy device no further than something looked inside."""
    notes, looked = [], facts.xray or facts.trace is not None
    could_look = facts.knobs.get("xray") is not None  # a watched loop could not
    gaps_may_hide = facts.kind == "gpu" and facts.trace is None and not deciding(facts.witnesses)
    if could_look and not looked:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif facts.xray and facts.kind == "gpu" and facts.trace is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    taken, cores = facts.taken_by_others, facts.cores or 1
    foreign = (facts.foreign_cores or 0.0) / cores
    if foreign > limits.FOREIGN_LOAD / 2:
        named = f": {listed(run.beside)}" if run.beside else ""
        notes.append(f"{OTHERS} used {foreign * cores:.1f} of {cores} cores meanwhile{named}.")
    elif taken > limits.FOREIGN_LOAD / 2:
        notes.append(f"{OTHERS} had the model's core for {taken:.0%} of the time.")
    if max(foreign, taken) > limits.FOREIGN_LOAD / 2:  # alone it need not come out the same
        confidence *= 1 - min(max(foreign, taken), 1.0)
    if run is not None and facts.kind == "gpu" and run.on_the_card:
        notes.append(f"{OTHERS} were on the same GPU: {listed(run.on_the_card)}.")
        share = _others_sm(run)
        confidence = min(confidence, limits.UNSEEN if share is None else 1 - share)
    if findings[0].name == "compute" and gaps_may_hide:
        remedy, confidence = LOOK_INSIDE if could_look else PROFILE, 0.0
        findings = (gaps_hidden(facts.shares["compute"], facts.witnesses, remedy), *findings)
    elif findings[0].name == "compute" and facts.loop and not facts.body:
        findings, confidence = (body_unseen(facts), *findings), 0.0
    elif findings[0].name == "compute" and not looked and not facts.body:
        confidence = min(confidence, limits.UNSEEN)
    of_pipeline = facts.loop is None and not facts.from_trace
    findings = tuple(typed(expecting(finding, facts, run), facts) for finding in findings)
    return Diagnosis(findings, confidence, source, tuple(notes), of_pipeline)


def expecting(finding: Finding, facts: Facts, run: Any) -> Finding:
    """Return a finding with what its first remedy is predicted to bring, where that can be told.

    Remedies that are predicted to gain no more than noise are left out.
    """
    kept = []
    gains = []
    for remedy in finding.remedies:
        gain = _gain(remedy.changes, finding, facts, run)
        if gain is None or gain[0] > 1 + WORTH:
            kept.append(remedy)
            gains.append(gain)
    expected = gains[0] if gains else None
    return replace(finding, remedies=tuple(kept), expected=expected)


def _gain(
    changes: dict[str, Any], finding: Finding, facts: Facts, run: Any
) -> tuple[float, float, float] | None:
    """Return the gain of some changes: value, low, high; None where nothing tells it."""
    workers = facts.workers
    if workers and changes.get("num_workers", -1) == workers.num_workers:
        return workers.gain, *workers.gain_range
    if changes == {"persistent_workers": True} and finding.cause == "workers_restart":
        gain = 1 / (1 - min(facts.loop.restart, 0.9))
        return gain, (1 + gain) / 2, gain
    if run is None or run.watched or not run.throughput:
        return None
    found = predict(run, **changes)
    if not found.throughput:
        return None
    low, high = found.throughput_range
    return tuple(rate / run.throughput for rate in (found.throughput, low, high))


# -- why a run gets no verdict --------------------------------------------------------------------


def too_short(steps: int) -> Finding | None:
    """Too few steps were measured."""
    if (missing := limits.MIN_STEPS - steps) <= 0:
        return None
    seen = f"only {steps} steps after the warm-up; a verdict needs {limits.MIN_STEPS}."
    return Finding("unsure", "too short", seen, f"Run {missing} more step{'s' * (missing > 1)}.")


def gaps_hidden(busy: float, seen: tuple[Witness, ...], remedy: str) -> Finding:
    """A GPU is busy by its events, and nothing can tell how much of that is gaps."""
    told = "".join(f"{'; ' if n else ': '}{witness.said}" for n, witness in enumerate(seen))
    text = (
        f"the device is busy at most {busy:.0%} of the time: a step counts from its first kernel "
        f"to its last, and whether gaps between them are waits for the host was not seen{told}."
    )
    return Finding("unsure", "busy is an upper bound", text, remedy)


def body_unseen(facts: Facts) -> Finding:
    """A watched loop's body takes the time, and too few samples tell what it does."""
    lines = facts.loop.lines
    why = lines.missing or "too few stacks were sampled"
    change = PROFILE if lines.refused else "Let it run for some seconds more."
    seen = f"the loop's body takes {facts.shares['compute']:.0%} of the time; whether that is "
    seen += f"training was not seen: {why}."
    return Finding("unsure", "body not seen", seen, change)


def _contradiction(facts: Facts) -> Finding | None:
    """The x-ray's kernels and the run's own events cannot both be right (a GPU)."""
    if facts.kind != "gpu" or facts.trace is None or not facts.compute_us:
        return None
    kernel_us = facts.trace.kernel_us
    ratio = kernel_us / facts.compute_us
    graphs = facts.trace.cuda_graphs or facts.knobs.get("compile") in GRAPH_MODES
    missing = ratio == 0 or (graphs and ratio < limits.GRAPH_KERNELS)
    if not missing and ratio <= limits.DISAGREE_OVER:
        return None
    seen = f"the x-ray saw kernels for {kernel_us / 1e3:.1f} ms per step, the run's own events a "
    seen += f"busy device for {facts.compute_us / 1e3:.1f} ms."
    hidden = "CUDA graphs hide kernels from some profilers: run without compile='reduce-overhead'. "
    change = f"{hidden if graphs else ''}Look with Nsight Systems."
    return Finding("unsure", "instruments disagree", seen, change)


def _device_shared(run: Any, facts: Facts, first: Finding) -> Finding | None:
    """Others worked on the device: a GPU's other processes, or what took the CPU's core."""
    taken, foreign, limit = facts.taken_by_others, facts.foreign_cores, limits.FOREIGN_LOAD
    # Who takes the CPU's core makes all that the host does longer in proportion, so its shares
    # stand. But that starves loader workers, which is then no fault of the pipeline, and a device
    # that others use is not the limit.
    starved = first.name == "input" and facts.knobs.get("num_workers")
    starved = starved and rules.losses(facts)[1]["input"] <= taken
    # A watched loop's thread is not timed: its long steps may be others' doing
    doubtful = run.watched and facts.kind == "cpu" and first.cause != "padding"
    changes = first.cause == "cold_start" or (first.cause == "drift" and not facts.growth)
    doubtful = doubtful and (first.name in ("compute", "launch") or changes)
    doubtful = doubtful and (facts.in_line is None or facts.in_line > limit)
    if facts.kind == "gpu" and (others := _on_the_card(run)):
        seen = others
    elif taken > limit and (first.name == "compute" or starved):
        seen = (
            f"for {taken:.0%} of the time another program had the core that the model's thread "
            f"needed (thread CPU time; threshold {limit:.0%})"
        )
        seen += "" if foreign is None else f"; other programs used {foreign:.1f} cores"
    elif doubtful and (foreign or 0.0) > limit * (facts.cores or 1):
        seen = (
            f"other programs used {foreign:.1f} of {facts.cores} cores (psutil; threshold "
            f"{limit:.0%}), and a watched loop cannot tell how much longer that made its steps"
        )
    else:
        return None
    return Finding("unsure", SHARED, f"{seen}.", "Stop the other work and run again.")


def _timed_samples(run: Any) -> list[tuple[float, dict[str, Any]]]:
    """Return the instruments' samples, each behind its time, s."""
    moments = run.seconds(np.array([sample["t_ns"] for sample in run.telemetry]))
    return list(zip(moments, run.telemetry, strict=True))


def _others_sm(run: Any) -> float | None:
    """Return the share (0 to 1) of the measured time in which others' kernels ran on the GPU.

    None where the driver does not tell.
    """
    start = run.stamps[max(run.warmup - 1, 0), 5]
    end = run.stamps[-1, 5]
    shares = [sample.get("others_sm") for at, sample in _timed_samples(run) if start < at <= end]
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None


def _on_the_card(run: Any) -> str | None:
    """Say what others computed on the GPU while the steps were measured; None where nothing.

    A process that only has a context there slows nobody down: its share of the SMs' time decides.
    Where the driver does not tell it (MIG, older drivers) one counts that came after the warm-up.
    """
    share = _others_sm(run)
    if share is not None:
        if share <= limits.FOREIGN_LOAD:
            return None
        text = f"kernels of other processes ran on the same GPU for {share:.0%} of the time"
        return f"{text} (NVML; threshold {limits.FOREIGN_LOAD:.0%})"
    start = run.stamps[max(run.warmup - 1, 0), 5]
    end = run.stamps[-1, 5]
    samples = _timed_samples(run)
    counts = [(at, s["others"]) for at, s in samples if at <= end and s.get("others") is not None]
    before = [count for at, count in counts if at <= start] or [count for _, count in counts[:1]]
    came = max((count for _, count in counts), default=0) - max(before, default=0)
    return f"{came} other processes came onto the same GPU (NVML)" if came else None
