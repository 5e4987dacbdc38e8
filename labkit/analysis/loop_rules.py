"""The rules of the diagnosis for somebody's own loop: what its body does besides training."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Facts, Finding, loss
from labkit.analysis.lines import Line
from labkit.analysis.loop import in_the_body


def not_training(facts: Facts) -> Iterator[Finding]:
    """A watched loop's body does other things than training: Python, files, waiting."""
    of_body, drift = facts.shares["compute"], facts.loop and facts.loop.drift
    for group, part in facts.body.items():
        lost = part * of_body
        cause, seen, change, lines = in_the_body(facts.loop, group, lost)
        if drift and (facts.loop.of(group) & drift.mask).any() and drift.share > lost / 2:
            continue  # it is what makes the steps longer and longer: said there
        if group != "validation" or cause == "periodic":
            source = f"{facts.loop.lines.samples} sampled stacks, {facts.source}"
            yield loss("host", cause, lost, seen, source, change, lines=lines)


def longer_and_longer(facts: Facts) -> Iterator[Finding]:
    """A watched loop's steps take longer and longer."""
    if facts.loop and (drift := facts.loop.drift):
        lines = facts.loop.lines.worst(drift.mask)
        seen = f"the last steps take {drift.growth:.1f} times as long as the first"
        seen += f": what grows is {lines[0].what}" if lines else ""
        change = "Something is kept from step to step, such as a list that grows."
        if grown := kept(facts):
            seen, change, lines = f"{seen}; {grown.evidence}", grown.advice, grown.lines + lines
        yield loss("host", "drift", drift.share, seen, facts.source, change, lines=lines)


def too_many_threads(facts: Facts) -> Iterator[Finding]:
    """Torch computes with more threads than there are cores: each waits for the others."""
    cores, threads = facts.cores or 0, facts.threads or 0
    alone = (facts.foreign_cores or 0.0) < limits.FOREIGN_LOAD * cores
    wanted = (facts.own_cores or 0.0) + (facts.in_line or 0.0)
    if alone and threads > cores > 0 and wanted > limits.CROWDED * cores:
        lost = (1 - cores / wanted) * facts.shares["compute"]
        seen = (
            f"torch computes with {threads} threads on {cores} cores: on average "
            f"{wanted:.1f} threads of this program had work"
        )
        change = f"torch.set_num_threads({cores}) or OMP_NUM_THREADS={cores}."
        yield loss("host", "threads", lost, seen, "time in line, Linux's schedstat", change)


def kept(facts: Facts) -> Finding | None:
    """Something grows from step to step: it may cost no time, but ends in want of memory."""
    early, late = facts.swelling or (0.0, 0.0)
    least = limits.BLAMED * (late - early) * 2**30  # bytes that explain why the memory rose
    graphs = [each for each in facts.growth if each["graph"]]
    grown = graphs or [each for each in facts.growth if late and (each.get("bytes") or 0) >= least]
    if not grown:
        return None
    line = max(grown, key=lambda each: (each.get("bytes") or 0, each["after"]))
    name = line["name"]
    where = Line(line["file"], line["line"], line["function"], 0.0, "body", "python", name)
    rose = f"; the program's memory rose from {early:.2g} to {late:.2g} GiB" if late else ""
    seen = (
        f"`{name}` in {where.address} grew from {line['before']} to {line['after']} while the loop "
        f"was watched{rose}."
    )
    change = f"Empty {name} now and then, or keep less in it: memory runs out some time."
    if graphs:
        seen = f"{seen[:-1]}: it keeps tensors with the graphs that made them."
        change = f"Keep numbers instead: {name} += loss.item(), or .append(loss.detach())."
    return Finding("host", "drift", seen, change, lines=(where,))
