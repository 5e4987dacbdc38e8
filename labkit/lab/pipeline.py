"""What is asked for: a `Pipeline` is the frozen spec of one run, and the one place knobs live.

Every knob is a dataclass field declared once, with its default, unit, range and a line of help.
Widgets, the command line, validation and the docs all read `KNOBS`, never a second list.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,2})?")


@dataclass(frozen=True)
class Knob:
    """One setting of a pipeline: how to check it, read it from text and explain it.

    `low` and `high` are inclusive, in `unit`. `auto` says what `None` stands for; a knob without
    it does not take `None`.
    """

    name: str
    kind: str  # "int", "float", "bool" or "str"
    default: Any
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple | None = None
    pattern: re.Pattern | None = None
    auto: str = ""

    @property
    def allowed(self) -> str:
        """The values this knob takes, in words: what every error message ends with."""
        if self.choices:
            words = ", ".join(repr(choice) for choice in self.choices)
        elif self.kind == "bool":
            words = "True or False"
        elif self.pattern:
            words = "'auto', 'cpu', 'mps', 'cuda' or 'cuda:N'"
        else:
            number = "a whole number" if self.kind == "int" else "a number"
            words = f"{number} from {self.low:g} to {self.high:g} {self.unit}".rstrip()
        return f"{words}, or None ({self.auto})" if self.auto else words

    def check(self, value: Any) -> Any:
        """Return `value` as this knob stores it; raise ValueError if it is not allowed."""
        if value is None and self.auto:
            return None
        if self.choices:
            if any(value is choice or value == choice for choice in self.choices):
                return value
        elif self.kind == "bool":
            if isinstance(value, (bool, int)) and value in (0, 1):
                return bool(value)
        elif self.pattern:
            if isinstance(value, str) and self.pattern.fullmatch(value):
                return value
        else:
            number = _number(value, whole=self.kind == "int")
            if number is not None and self.low <= number <= self.high:
                return number
        raise ValueError(f"{self.name}={value!r} is not allowed: use {self.allowed}.")

    def parse(self, text: str) -> Any:
        """Read the knob from the command line; raise ValueError as `check` does."""
        if text.lower() in ("none", "auto", "off") and (self.auto or None in (self.choices or ())):
            return None
        if self.kind == "bool":
            words = {"true": True, "yes": True, "1": True, "on": True}
            words |= {"false": False, "no": False, "0": False, "off": False}
            return self.check(words.get(text.lower(), text))
        if self.kind in ("int", "float"):
            number = _number(text, whole=self.kind == "int")
            return self.check(text if number is None else number)
        return self.check(text)


def _number(value: Any, whole: bool) -> int | float | None:
    """Return `value` as an int or a finite float, or None where it is neither."""
    try:
        if not whole:
            number = float(value)
        elif isinstance(value, str):
            number = int(value)
        elif isinstance(value, float):
            return int(value) if value.is_integer() else None
        else:
            number = operator.index(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def knob(default: Any, help: str, *, kind: str = "", **rules: Any) -> Any:
    """Declare a knob as a dataclass field (its kind follows from the default where it has one)."""
    kind = kind or type(default).__name__
    return field(default=default, metadata={"kind": kind, "help": help, **rules})


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A training pipeline to measure: data, loader, model and how it is trained.

    Frozen: `pipeline.but(num_workers=4)` returns a changed copy. `None` means "chosen for this
    machine or dataset"; the run reports what it became. A bad value raises a ValueError that
    names the knob, the value and what is allowed.
    """

    # The data
    dataset: str = knob(
        "jpeg",
        "jpeg: real files, decoded and augmented; array: preprocessed; sleep: a textbook delay",
        choices=("jpeg", "array", "sleep"),
    )
    prep_ms: float | None = knob(
        None,
        "delay that stands in for preparing one batch, for dataset='sleep' only",
        kind="float", unit="ms", low=0, high=10_000, auto="50 ms for 'sleep'",
    )  # fmt: skip
    io_ms: float | None = knob(
        None,
        "stated storage wait per item, as from a network drive (a sleep, and said so)",
        kind="float", unit="ms", low=0, high=1_000, auto="2.5 ms for 'jpeg', 0 for the others",
    )  # fmt: skip
    stall_ms: float = knob(
        0.0, "length of a slow-disk stall (a sleep, and said so)", unit="ms", low=0, high=10_000
    )
    stall_every: int = knob(
        20, "one stall in this many batches, when stall_ms is above 0", low=1, high=100_000
    )
    image_px: int = knob(
        48, "edge of the images the model sees; files are twice that", unit="px", low=8, high=512
    )
    augment: int = knob(
        1, "rounds of random crop, flip and colour change for every image", low=0, high=64
    )
    # The loader: torch.utils.data.DataLoader's own names
    batch_size: int = knob(16, "samples in a batch", unit="samples", low=1, high=16_384)
    num_workers: int = knob(0, "loader processes; 0 prepares in the training loop", low=0, high=128)
    pin_memory: bool = knob(False, "hand batches over in page-locked memory")
    prefetch_factor: int | None = knob(
        None, "batches each worker keeps ready", kind="int", low=1, high=1024,
        auto="PyTorch's 2 with workers",
    )  # fmt: skip
    persistent_workers: bool = knob(False, "keep the workers from one epoch to the next")
    non_blocking: bool = knob(False, "start copies to the device without waiting for them")
    prefetch_to_device: bool = knob(
        False, "copy the next batch on a stream of its own, under the compute of this one"
    )
    # The model
    model: str = knob(
        "cnn", "the model to train, in plain PyTorch", choices=("mlp", "cnn", "transformer")
    )
    width: int | None = knob(
        None, "channels or features of the model", kind="int", low=1, high=16_384,
        auto="chosen for the device",
    )  # fmt: skip
    depth: int | None = knob(
        None, "layers of the model", kind="int", low=1, high=256, auto="chosen for the device"
    )
    # How it is trained
    precision: str = knob(
        "fp32",
        "number format of the heavy math; fp16 makes the host wait in every update for its loss "
        "scale, unless the optimizer is fused",
        choices=("fp32", "tf32", "fp16", "bf16"),
    )
    accumulation_steps: int = knob(
        1, "batches whose gradients are added up before one update", low=1, high=1024
    )
    compile: str | None = knob(
        None,
        "torch.compile mode; None runs eagerly",
        kind="str",
        choices=(None, "default", "reduce-overhead", "max-autotune"),
    )
    channels_last: bool = knob(False, "store images and conv weights channels last")
    fused_optimizer: bool = knob(False, "update all parameters in one fused kernel")
    # The run
    steps: int = knob(80, "batches to train on", low=1, high=1_000_000)
    seconds: float | None = knob(
        4.0, "stop after this long even if steps remain", kind="float", unit="s", low=0.1,
        high=86_400, auto="no limit",
    )  # fmt: skip
    xray: bool = knob(
        True, "look inside a few more steps with torch.profiler when the measured ones are over"
    )
    seed: int = knob(0, "seed of weights, order and augmentation", low=0, high=2**31 - 1)
    device: str = knob(
        "auto", "auto picks the accelerator where there is one, else the CPU", pattern=DEVICE
    )

    def __new__(cls, **knobs: Any) -> Pipeline:
        """Refuse a name that is no knob with a ValueError that suggests the nearest one."""
        check_names(knobs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, rule in KNOBS.items():
            object.__setattr__(self, name, rule.check(getattr(self, name)))
        if self.num_workers == 0:
            self._needs_workers("prefetch_factor", None)
            self._needs_workers("persistent_workers", False)

    def _needs_workers(self, name: str, without: Any) -> None:
        value = getattr(self, name)
        if value != without:
            raise ValueError(
                f"{name}={value!r} needs loader workers and num_workers=0 has none: "
                f"use num_workers of 1 or more, or leave {name}={without!r}."
            )

    def but(self, **changes: Any) -> Pipeline:
        """Return this pipeline with some knobs changed; raises ValueError on a bad one."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Every knob and its value, as JSON types."""
        return {name: getattr(self, name) for name in KNOBS}

    def to_spec(self) -> dict[str, Any]:
        """What the first event of its run's log says of it."""
        return {"pipeline": self.to_dict()}

    def changed(self) -> dict[str, Any]:
        """The knobs that differ from their defaults."""
        return {n: v for n, v in self.to_dict().items() if v != KNOBS[n].default}

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(f'{n}={v!r}' for n, v in self.changed().items())})"


KNOBS: dict[str, Knob] = {
    f.name: Knob(name=f.name, default=f.default, **f.metadata) for f in fields(Pipeline)
}


def check_names(knobs: dict[str, Any]) -> None:
    """Raise ValueError for a name that is no knob, with the nearest one that is."""
    import difflib

    for name in knobs:
        if name not in KNOBS:
            near = difflib.get_close_matches(name, KNOBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"knobs are {', '.join(KNOBS)}."
            raise ValueError(f"{name}={knobs[name]!r}: there is no knob {name!r}; {hint}")


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """Read `knob=value` strings from a command line; raise ValueError on a bad one."""
    knobs = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} is not a setting: write knob=value.")
        check_names({name: text})
        knobs[name] = KNOBS[name].parse(text)
    return knobs
