"""Which changes a run can speak for, what they do to the step, and what it cannot know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FREE = ("num_workers", "prefetch_factor", "stall_ms", "stall_every", "steps", "seconds", "seed",
        "xray")  # fmt: skip
STATED = ("io_ms", "prep_ms")
NEVER = {
    "image_px": "the cost of an item and of a step at another image size was not measured",
    "augment": "what a round of augmentation costs was not measured",
    "dataset": "another dataset was not measured",
    "model": "another model was not measured",
    "width": "the model at another width was not measured",
    "depth": "the model at another depth was not measured",
    "device": "another device was not measured",
    "channels_last": "the model in another memory layout was not measured",
    "fused_optimizer": "the fused update was not measured",
    "compile": "the compiled model was not measured",
    "accumulation_steps": "what an update costs was not measured apart from the rest of a step",
    "non_blocking": "how much of the copy would overlap was not measured",
    "prefetch_to_device": "how much of the copy would overlap was not measured",
}
BATCH_FACTOR = 4  # the step's time at other batch sizes is a straight line only so far
LITTLE_COPY = 0.02  # of a step: below this, faster copies cannot show


class CannotPredict(Exception):
    """What a run does not tell, and what to do about it."""


@dataclass(frozen=True)
class Change:
    """What the changed knobs do to a step.

    Attributes:
        step: Time of a step over that of the measured one.
        notes: What was taken into account, in words; what does nothing says so.
    """

    step: float = 1.0
    notes: tuple[str, ...] = ()


def change_of(run: Any, target: Any) -> Change:
    """Judge the step from `run`'s pipeline to `target`; raise CannotPredict where it cannot."""
    old, step, notes = run.pipeline, 1.0, []
    for name, value in target.to_dict().items():
        if value == getattr(old, name) or name in FREE:
            continue
        if name in NEVER:
            raise CannotPredict(f"{NEVER[name]}: run it once with {name}={value!r}")
        if name in STATED and getattr(old, name) is None:
            raise CannotPredict(f"the run states no {name}: its waits are its own")
        if name == "batch_size":
            step *= _batch(run, old.batch_size, value, notes)
        elif name == "precision":
            step /= _precision(run, value)
        elif name == "persistent_workers":
            notes.append("persistent_workers acts between epochs, and this run has one")
        elif name == "pin_memory":
            notes.append(_pin_memory(run))
    return Change(step, tuple(notes))


def _batch(run: Any, old: int, new: int, notes: list[str]) -> float:
    if not old / BATCH_FACTOR <= new <= old * BATCH_FACTOR:
        raise CannotPredict(
            f"batch_size={new} is more than {BATCH_FACTOR} times away from the measured {old}: "
            f"run it once with a batch size from {-(-new // BATCH_FACTOR)} to {new * BATCH_FACTOR}"
        )
    fixed = (run.xray_facts or {}).get("fixed_share")
    if fixed is None:
        raise CannotPredict(
            "no x-ray tells how a step's time grows with the batch: run it again with xray=True "
            "and 3 seconds or more"
        )
    notes.append(f"{fixed:.0%} of a step does not grow with the batch (x-ray)")
    return fixed + (1 - fixed) * new / old


def _precision(run: Any, new: str) -> float:
    speedup = (run.xray_facts or {}).get("bf16_speedup")
    if new == "bf16" and run.pipeline.precision == "fp32" and speedup:
        return speedup
    raise CannotPredict(
        f"a step in {new} was not timed: run it once with precision={new!r} (an x-ray of an fp32 "
        "run times bf16)"
    )


def _pin_memory(run: Any) -> str:
    if run.machine.kind == "cpu":
        return "pin_memory does nothing where the device is the CPU"
    if run.copy_ms is not None and run.copy_ms < LITTLE_COPY * run.step_ms:
        return f"copies take {run.copy_ms / run.step_ms:.1%} of a step: pinning cannot show"
    raise CannotPredict("copies from the other kind of memory were not timed: run it once")
