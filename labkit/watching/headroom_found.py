"""What the blocks of a replayed loop say about a perfect loader: the numbers, and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from labkit.process.events import EventLog
from labkit.watching.alternation import BLOCK_STEPS, MOST_STEPS, Alternation

LEAST_PAIRS = 2  # of blocks, for a factor with a range
DRAWS = 1_000  # of the bootstrap
WITHIN = 1.05  # a factor that is no more is none

CANNOT_SHOW = (
    "Replay cannot show what a loader's side effects, a dataset's own state or new samples would "
    "change, and it holds the kept batches in memory. Some steps of this run saw batches again: "
    "train anew for results."
)
SHARED_CORES = (
    "Model and workers share the cores: while batches were replayed the workers filled their queue "
    "and then stood idle, so the replayed steps had the cores to themselves, as with a loader that "
    "costs no CPU time."
)
IN_PLACE = "The loop changes its batches in place: replayed ones are not what the loader gave."


@dataclass(frozen=True)
class Found:
    """What the blocks of a loop say."""

    pairs: int
    notes: tuple[str, ...]
    factor: float | None = None  # throughput with a perfect loader over the present one
    low: float | None = None  # 95 % interval of `factor`, from the pairs of blocks
    high: float | None = None
    live: float | None = None  # steps a second of the loop as it is
    perfect: float | None = None  # and with a perfect loader


def found_in(blocks: Alternation) -> Found:
    """Return what the blocks say by now."""
    notes = _notes(blocks)
    pairs = len(blocks.pairs)
    if pairs < LEAST_PAIRS:
        return Found(pairs, notes)
    import numpy as np

    live, perfect = np.array(blocks.pairs).T
    ratios = perfect / live
    draws = np.random.default_rng(0).choice(ratios, (DRAWS, pairs))  # our own generator
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    factor = float(np.median(ratios))
    usual = float(np.median(live))
    return Found(
        pairs=pairs,
        notes=notes,
        factor=factor,
        low=float(low),
        high=float(high),
        live=usual,
        perfect=usual * factor,
    )


def _notes(blocks: Alternation) -> tuple[str, ...]:
    """Return what a reader of the numbers has to know."""
    notes = [CANNOT_SHOW]
    if blocks.shares_cores:
        notes.append(SHARED_CORES)
    if blocks.changed:
        notes.append(IN_PLACE)
    return tuple(notes)


def in_words(found: Found) -> str:
    """Say in a sentence what was found."""
    if found.factor is None or found.low is None:
        return (
            "headroom: the loop ended too soon to tell: it takes two blocks of live batches, and "
            f"two of kept ones, of {BLOCK_STEPS} to {MOST_STEPS} steps each. Train for longer."
        )
    interval = f"({found.low:.2f}x to {found.high:.2f}x in {found.pairs} pairs of blocks)"
    would_do = f"headroom: with a perfect loader your loop would do {found.perfect:,.1f}"
    if found.low <= WITHIN:
        return (
            f"{would_do} steps/s, and it does {found.live:,.1f}: {found.factor:.2f}x "
            f"{interval}. The loader does not hold it back."
        )
    return (
        f"{would_do} steps/s instead of {found.live:,.1f}: at most {found.factor:.1f}x {interval}."
    )


def write(blocks: Alternation, log: EventLog) -> None:
    """Write what the blocks say by now into the log of the loop's run."""
    found = found_in(blocks)
    log.write("headroom", **asdict(found), text=in_words(found))
