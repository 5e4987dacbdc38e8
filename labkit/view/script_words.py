"""What was found about a watched script, in words and as JSON types."""

from __future__ import annotations

from labkit.diagnosis.watched_script import ScriptVerdict, waited_s
from labkit.results.run import Run
from labkit.watching.hangs import LiveHang

Values = dict[str, object]  # as JSON types
MOST_LINES = 20  # of code that are listed
SURE = ((0.9, "high"), (0.6, "medium"), (0.01, "low"))
NOT_TRAINED = "headroom: not measured, as no optimizer made a step within a DataLoader's loop."


def values_inside(found: ScriptVerdict, headroom: bool) -> Values:
    """Return what `--json` says of a script whose steps were seen; `headroom`: it was asked for."""
    run = found.run
    verdict = found.ranks.verdict
    values = verdict.to_dict() | {
        "seen": "inside",
        "confidence": next((word for least, word in SURE if verdict.confidence >= least), "none"),
        "evidence": verdict.evidence,
        "advice": verdict.advice,
        "record": str(run.path),
        "lines": [line.to_dict() for line in run.lines.lines[:MOST_LINES]],
        "ranks": {str(rank): own.bottleneck for rank, own in found.ranks.own.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
        "workers": run.workers.to_dict(),
    }
    if found.shares is not None:
        values["wall_shares"] = found.shares.to_dict()
    if headroom:
        values["headroom"] = found.headroom
    return values


def text_inside(found: ScriptVerdict, hang: LiveHang | None, is_over: bool, headroom: bool) -> str:
    """Return what is printed of a script whose steps were seen; `is_over`: its hang ended."""
    run = found.run
    texts = [run.numbers, str(found.ranks.verdict)]
    if len(found.loaders) > 1:
        has_queue = run.machine.kind == "gpu"  # which may have work while the host waits
        who = "the host" if has_queue else "this loop"
        texts.append(f"loaders that {who} waits for: {', '.join(map(_waiting, found.loaders))}")
    if found.shares is not None:
        texts.append(f"whole time: {found.shares}")
    if headroom:
        texts.append(found.headroom["text"] if found.headroom else NOT_TRAINED)
    if hang is not None:
        after = " It moved again afterwards." if is_over else ""
        texts.append(f"a hang: {hang.text}{after}")
    if len(run.lines):
        texts.append(str(run.lines))
    if len(found.ranks.own) > 1:
        named = [f"{rank} {own.headline}" for rank, own in sorted(found.ranks.own.items())]
        texts.append(f"ranks, each judged alone: {', '.join(named)}")
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    return "\n".join(texts)


def _waiting(run: Run) -> str:
    """Return the name of a run's loader, and for which share of the time the loop waits for it."""
    name = (run.loop_code or {}).get("loader") or run.watched
    return f"`{name}` {waited_s(run) / max(run.length_s, 1e-9):.0%}"


def values_of_hang(hang: LiveHang, is_over: bool) -> Values:
    """Return what `--json` says of a hang."""
    return {
        "seconds": hang.seconds,
        "over": is_over,
        "worker": hang.worker,
        "index": hang.index,
        "line": hang.line,
        "text": hang.text,
    }
