"""The rules of the diagnosis: each looks for one cause of lost device time, yields what it costs.

However little; `rank` decides which losses are worth a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from labkit.diagnosis import remedies
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.facts import Facts, Finding, loss
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.instruments import deciding
from labkit.diagnosis.loop_body import costliest_of_loading, in_the_body, synchronises, why_it_waits
from labkit.diagnosis.remedies import BF16

NEIGHBOUR = "neighbour"  # what fills the cores, so that launches come late
# Kernels that only move data; a fused optimizer does in one pass what foreach does in many
PASSES = re.compile(r"elementwise|multi_tensor_apply(?!.*fused)", re.I)
# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)
# CUTLASS ends a kernel's name in its alignment: 16-bit sizes in multiples of 8 run in `align8`
UNALIGNED = re.compile(r"(?:tensorop|wmma|[hs]?16816|[hs]1688|h884).*_align[12]\b")


def losses(facts: Facts) -> tuple[list[Finding], dict[str, float]]:
    """Return what every rule finds, however small, and each bottleneck's loss: causes add up."""
    found = _each_once([finding for rule in RULES for finding in rule(facts)])
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def _each_once(found: list[Finding]) -> list[Finding]:
    """Take what a neighbour makes of the launches' time out of what else tells of launches."""
    lost = sum(finding.lost_share for finding in found if finding.cause == NEIGHBOUR)
    others = [f for f in found if f.name == "launch" and f.cause != NEIGHBOUR and f.lost_share > 0]
    if not lost or not others:
        return found
    total = sum(finding.lost_share for finding in others)
    left = max(total - lost, 0.0) / total
    return [
        replace(finding, lost_share=finding.lost_share * left) if finding in others else finding
        for finding in found
    ]


def rank(facts: Facts) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    (found, total), limit = losses(facts), limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    grown = None if any(f.cause == "drift" for f in named) else kept(facts)
    more = [finding for finding in (grown, held_down(facts)) if finding]
    if named or more:
        return tuple(sorted(named, key=lambda f: (-total[f.name], -f.lost_share)) + more)
    name = max(total, key=lambda n: total[n] / limit[n])
    seen = (
        f"the device computes for {facts.shares['compute']:.0%} of the time and no loss reaches "
        f"its threshold; the nearest is {name}, {total[name]:.0%} of the time with a threshold of "
        f"{limit[name]:.0%} ({facts.source})."
    )
    change = "Nothing in the pipeline holds the device back: what is left is a larger batch "
    change += "(notebook 04 Batch sizing), a smaller model or a faster device."
    if (part := facts.body.get("validation", 0.0) * facts.shares["compute"]) >= limit["host"]:
        change += f" Passes without gradients take {part:.0%}: if they validate, do it less often."
    return (Finding("compute", "the device is the limit", seen, change),)


# -- the device has nothing to compute ------------------------------------------------------------


def waiting_for_data(facts: Facts) -> Iterator[Finding]:
    """The loop waits for its next batch."""
    lost = facts.shares["wait"]
    seen = f"{lost:.0%} of the time is spent waiting for the next batch"
    if stalls := facts.stalls > limits.STALLS and lost > 0.02:
        seen += f", {facts.stalls:.0%} of it in a tenth of the steps: stalls"
    cause, more, first, lines = facts.loop and why_it_waits(facts.loop, lost) or ("", "", "", ())
    change, changes = remedies.feed(facts, stalls, cause, first)
    if not cause and facts.lines:
        lines = costliest_of_loading(facts.lines)
    seen += f"; {more}" if more else ""
    changes = [{"persistent_workers": True}] * (cause == "workers_restart") + changes
    cause = cause or ("stalls" if stalls else "waiting for data")
    yield loss("input", cause, lost, seen, facts.source, change, lines=lines, changes=changes)


def cores_taken_by_workers(facts: Facts) -> Iterator[Finding]:
    """Loader workers compute on the cores that a model on the CPU needs."""
    if (lost := facts.taken_by_workers) is not None:
        seen = (
            f"for {lost:.0%} of the time a loader worker had the core that the model's thread "
            f"needed, with {facts.knobs['num_workers']} workers on {facts.cores} cores"
        )
        change, changes = remedies.CHEAPER_ITEMS, []
        if facts.workers and facts.workers.num_workers < facts.knobs["num_workers"]:
            change, changes = remedies.feed(facts, stalls=False)
        source = "thread CPU time against wall time"
        cause = "workers take the device's cores"
        yield loss("input", cause, lost, seen, source, change, changes=changes)


def copies(facts: Facts) -> Iterator[Finding]:
    """The device waits for a copy from the host."""
    lost, (change, changes) = facts.shares["copy"], remedies.copy(facts)
    seen = f"{lost:.0%} of the time the device waits for a copy"
    yield loss("transfer", "copies", lost, seen, facts.source, change, changes=changes, bounds=True)


def host_work(facts: Facts) -> Iterator[Finding]:
    """The host does something else while the device waits, in every step or now and then."""
    lost = facts.shares["other"] + facts.shares["launch"]
    seen = f"{lost:.0%} of the time the device waits while the host does something other than data "
    change = "Take logging, checkpoints, evaluation and .item() out of the loop, or do them "
    change += "rarely; where there is none, launch fewer and larger kernels."
    cause, seen, changes = "host work in the loop", f"{seen}and copies", []
    if facts.from_trace:
        cause, change = "issuing work", remedies.less_to_launch(facts)
        changes = remedies.fewer_launches(facts)
        seen = f"{lost:.0%} of the time the device waits while the host issues work: in operators, "
        seen += "in calls of the runtime, in Python between them"
    yield loss("launch", cause, lost, seen, facts.source, change, changes=changes)
    if not facts.body:  # else samples tell what long steps do
        seen = f"{facts.pauses:.0%} of the time is lost to single steps that compute far longer "
        seen += "than an ordinary one"
        change = "Look for what runs now and then: garbage collection, recompiles, checkpoints."
        yield loss("launch", "pauses inside steps", facts.pauses, seen, facts.source, change)


def outside_pytorch(facts: Facts) -> Iterator[Finding]:
    """The host does what the profiler knows nothing of, while the device waits (a trace)."""
    if lost := facts.shares.get("host", 0.0):
        names = ", ".join(facts.trace.host_where)
        seen = f"{lost:.0%} of the time the device waits for host work outside of PyTorch"
        seen += f", most of it in {names}" if names else ""
        if PREPARES.search(names):
            change = "Do it in a Dataset, and read that with a DataLoader that has workers."
            cause = "data prepared outside a DataLoader"
            yield loss("input", cause, lost, seen, facts.source, change)
        else:
            change = "Take it out of the loop, or do it rarely or in another process: logging, "
            change += "checkpoints, evaluation, preparing data; with_stack=True records where it "
            change += "is."
            yield loss("host", "host work", lost, seen, facts.source, change)


def collectives(facts: Facts) -> Iterator[Finding]:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace)."""
    if lost := facts.shares.get("communication", 0.0):
        seen = f"{lost:.0%} of the time only collectives run, hidden behind no compute"
        change = "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch."
        if (late := facts.ranks and facts.ranks.straggler) is not None:
            seen += f"; {facts.ranks.headline}"
            change = f"Look into the trace of rank {late} first: the others wait for it."
        cause = "exposed collectives"
        yield loss("communication", cause, lost, seen, facts.source, change, late)


def held_down(facts: Facts) -> Finding | None:
    """Heat holds the card's clock down: it is busy, and slower than it could be."""
    time, slower = facts.throttled or (0.0, None)
    if time < limits.HELD_DOWN:
        return None
    seen = f"in {time:.0%} of the readings heat or a power brake held the card's clock down"
    seen += "" if slower is None else f", to {1 - slower:.0%} of its highest here"
    change = "Check its cooling (airflow, dust, a hot card beside it), or lower its power limit."
    lost = time * (slower or 0.0) * facts.shares["compute"]
    return Finding("compute", "throttle", f"{seen} (NVML's clock reasons).", change, lost)


# -- the host is too slow for a device that looks busy --------------------------------------------


def tiny_operators(facts: Facts) -> Iterator[Finding]:
    """Python and the dispatch of small operators take the time (a CPU)."""
    if facts.kind == "cpu" and (xray := facts.xray):
        # The profiler's own cost (1 to 2 µs an operator) is in it; the threshold was calibrated so
        part = min(1.0, (xray["gap_us"] + xray["tiny_us"]) / max(xray["window_us"], 1e-9))
        lost, fixed = facts.shares["compute"] * part, xray.get("fixed_share")
        seen = (
            f"{lost:.0%} of the time, inside the compute, goes to Python and to dispatching "
            f"{xray['tiny_ops']} operators of under 10 µs per step"
        )
        more = "" if fixed is None else f"; {fixed:.0%} of it does not grow with the batch"
        cause = "Python and tiny operators"
        source, changes = facts.looked_at + more, remedies.fewer_launches(facts)
        change = remedies.more_per_call(facts)
        yield loss("launch", cause, lost, seen, source, change, changes=changes)


def noisy_neighbour(facts: Facts) -> Iterator[Finding]:
    """The cores are full, so that the threads that launch a GPU's kernels stand in line for one.

    A device that still has work in its queue does not notice.
    """
    if facts.queued_ms is None or not facts.launchers_in_line:
        return
    lost = facts.launchers_in_line * (1 - facts.ahead)
    seen = (
        f"for {facts.launchers_in_line:.0%} of the time the threads that launch kernels had to "
        f"wait for a core, and for {1 - facts.ahead:.0%} of it the GPU's queue could run dry"
    )
    if facts.own_cores is not None and facts.cores:
        seen += f"; this run used {facts.own_cores:.1f} of {facts.cores} cores with "
        seen += f"{facts.knobs.get('num_workers') or 0} workers, "
        seen += f"other programs {facts.foreign_cores:.1f}"
    seen += f"; a step's compute began {facts.queued_ms:.1f} ms after it was issued"
    change, changes = remedies.quieter(facts)
    source = "time in line, Linux's schedstat"
    yield loss("launch", NEIGHBOUR, lost, seen, source, change, changes=changes)


def gaps_between_kernels(facts: Facts) -> Iterator[Finding]:
    """A GPU waits for launches inside the step: so the x-ray says, or else a witness."""
    share, trace, fewer = facts.shares["compute"], facts.trace, remedies.fewer_launches(facts)
    change = remedies.less_to_launch(facts)
    if facts.kind == "gpu" and trace is not None and facts.compute_us and not facts.from_trace:
        lost = max(0.0, 1 - trace.kernel_us / facts.compute_us) * share
        seen = f"{lost:.0%} of the time no kernel runs inside the step's compute: kernels take "
        seen += f"{trace.kernel_us / 1e3:.1f} ms of {facts.compute_us / 1e3:.1f} ms"
        cause, source = "gaps between kernels", "x-ray against events"
        yield loss("launch", cause, lost, seen, source, change, changes=fewer)
    if (witness := deciding(facts.witnesses)) and not witness.works:
        seen = (
            f"the device is busy {share:.0%} of the time by its events, but {witness.said}: gaps "
            "between kernels, or kernels too small for it"
        )
        change = f"{change} An x-ray (xray=True) tells gaps from small kernels."
        lost, cause, lines = (1 - witness.share) * share, "gaps or small kernels", ()
        if facts.loop and (found := synchronises(facts.loop)):
            part, lines = found
            cause, seen = "sync", f"{seen}; for {part:.0%} of the body the host waits in "
            seen += lines[0].what
        yield loss("launch", cause, lost, seen, facts.source, change, lines=lines, changes=fewer)


# -- the device computes, but not as it could -----------------------------------------------------


def number_format(facts: Facts) -> Iterator[Finding]:
    """The heavy math runs in FP32, or in a 16-bit format of which Tensor Cores make little."""
    share, trace, speedup = facts.shares["compute"], facts.trace, facts.xray.get("bf16_speedup")
    if speedup and speedup > 0:
        lost = max(0.0, 1 - 1 / speedup) * share
        seen = f"FP32 costs {lost:.0%} of the time: in BF16 the same compute took 1/{speedup:.2f} "
        change = "Set precision='bf16' and compare the losses."
        source, seen = "measured on this run's own step", f"{seen}as long"
        yield loss("precision", "FP32", lost, seen, source, change, changes=BF16)
    could = trace and trace.tensor_core_eligible_share
    part = 1 - 1 / limits.TENSOR_CORE_GAIN
    costs = f"at {limits.TENSOR_CORE_GAIN:g}x, the low end of published gains, that costs"
    if (
        could is not None and speedup is None and facts.formats != ()
    ):  # else it was measured: better than told by names
        lost = max(0.0, could - trace.tensor_core_share) * part * share
        seen = (
            f"{could:.0%} of kernel time is in operators that can use Tensor Cores, "
            f"{trace.tensor_core_share:.0%} does: {costs} {lost:.0%} of the time"
        )
        change, changes = remedies.sixteen_bits(facts)
        cause = "no Tensor Cores"
        yield loss("precision", cause, lost, seen, facts.looked_at, change, changes=changes)
    if trace is not None and trace.top_kernels:
        odd = _kernel_share(facts, UNALIGNED)
        lost, of_8 = odd * part * share, "is in products of sizes that are not a multiple of 8"
        seen = f"{odd:.0%} of kernel time {of_8}: {costs} {lost:.0%} of the time"
        change = "Round layers, vocabulary and batch to multiples of 8, better 64."
        yield loss("precision", "unaligned sizes", lost, seen, facts.looked_at, change)


def memory_traffic(facts: Facts) -> Iterator[Finding]:
    """Chains of elementwise operators, each of which reads and writes all of its data."""
    share, xray, trace = facts.shares["compute"], facts.xray, facts.trace
    if facts.kind == "cpu" and xray:
        cause, window = "elementwise chains", max(xray["window_us"], 1e-9)
        lost = min(1.0, xray["fusible_us"] / window) * share
        seen = (
            f"{lost:.0%} of the time goes to passes over memory that one fused pass would save: "
            f"elementwise operators take {xray['elementwise_us'] / window:.0%} of the compute"
        )
    elif facts.kind == "gpu" and trace is not None and trace.top_kernels:
        cause = "elementwise kernels"
        moves, ran = _kernel_share(facts, PASSES), trace.kernel_us
        running = min(1.0, ran / (facts.compute_us or ran or 1.0))  # the compute less the gaps
        lost = moves * limits.FUSION_SAVES * running * share
        seen = (
            f"{moves:.0%} of kernel time is in elementwise kernels, which only move data: one pass "
            f"instead of two would save {lost:.0%} of the time"
        )
    else:
        return
    change, changes = remedies.fusing(facts), remedies.fuse(facts)
    yield loss("memory_bandwidth", cause, lost, seen, facts.looked_at, change, changes=changes)


def padding(facts: Facts) -> Iterator[Finding]:
    """The device computes on what only fills up the rows of a batch of text."""
    if facts.padding:
        lost = facts.padding * facts.shares["compute"]
        seen = f"{facts.padding:.0%} of the tokens are padding, which takes {lost:.0%} of the time"
        source, ours = f"lengths of the sequences, {facts.source}", facts.knobs.get("dataset")
        change, changes = remedies.UNPAD if ours == "text" else (remedies.PAD_LESS, ())
        yield loss("compute", "padding", lost, seen, source, change, changes=changes)


def _kernel_share(facts: Facts, names: re.Pattern) -> float:
    """Return the share of kernel time in kernels whose names match, 0 to 1."""
    us = sum(k.total_us for k in facts.trace.top_kernels if names.search(k.name))
    return min(1.0, us / facts.trace.steps / max(facts.trace.kernel_us, 1e-9))


# -- somebody's own loop: what its body does besides training --------------------------------------


def not_training(facts: Facts) -> Iterator[Finding]:
    """A watched loop's body does other things than training: Python, files, waiting."""
    of_body, drift = facts.shares["compute"], facts.loop and facts.loop.drift
    for group, part in facts.body.items():
        lost = part * of_body
        cause, seen, change, lines = in_the_body(facts.loop, group, lost)
        said = drift and drift.share > lost / 2
        if said and (facts.loop.lines.of_part(group) & drift.mask).any():
            continue  # it is what makes the steps longer and longer: said there
        if group != "validation" or cause == "periodic":
            source = f"{facts.loop.lines.samples} sampled stacks, {facts.source}"
            bounds = group != "validation"
            yield loss("host", cause, lost, seen, source, change, lines=lines, bounds=bounds)


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
        seen = f"torch computes with {threads} threads on {cores} cores: on average {wanted:.1f} "
        seen += "threads of this program had work"
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


RULES = (
    waiting_for_data, cores_taken_by_workers, copies, host_work, not_training, longer_and_longer,
    too_many_threads, outside_pytorch, collectives, tiny_operators, noisy_neighbour,
    gaps_between_kernels,
    number_format, memory_traffic, padding,
)  # fmt: skip
