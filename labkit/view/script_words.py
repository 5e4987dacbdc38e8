"""What was found about a watched script, in words and as JSON types."""

from __future__ import annotations

from dataclasses import asdict

from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.wall_shares import shares_of
from labkit.diagnosis.watched_script import ScriptVerdict
from labkit.instruments.hangs import LiveHang

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
        "lines": [line.to_dict() for line in lines_of(run).lines[:MOST_LINES]],
        "ranks": {str(rank): own.bottleneck for rank, own in found.ranks.own.items()},
        "run": {name: value for name, value in run.to_dict().items() if name != "loss"},
        "workers": run.workers.to_dict(),
    }
    shares = shares_of(run)
    if shares is not None:
        values["wall_shares"] = asdict(shares)
    if headroom:
        values["headroom"] = found.headroom
    return values


def text_inside(found: ScriptVerdict, hang: LiveHang | None, headroom: bool) -> str:
    """Return what is printed of a script whose steps were seen, and which may have hung."""
    run = found.run
    texts = [run.numbers, str(found.ranks.verdict)]
    shares = shares_of(run)
    if shares is not None:
        texts.append(f"whole time: {shares}")
    if headroom:
        texts.append(found.headroom["text"] if found.headroom else NOT_TRAINED)
    if hang is not None:
        after = " It moved again afterwards." if hang.over else ""
        texts.append(f"a hang: {hang.text}{after}")
    lines = lines_of(run)
    if len(lines):
        texts.append(str(lines))
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    return "\n".join(texts)
