"""A knob and a spec of knobs: declared once, checked, read from text and explained by one code."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

Setting = bool | int | float | str | None
"""The value of a knob."""
Settings = dict[str, Any]
"""{knob: value}"""
# What a knob does, for what chooses among knobs by it
Trait = Literal[
    "retrains",  # it changes what is trained: `lk.improve` leaves it alone
    "starves",  # it sets how fast the loader is: a rank may have its own
    "outside step",  # it leaves a step's time alone: it is simulated, or changes no speed
]
WORDS = {
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
}
NUMBERS = ("int", "float")
SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class Knob:
    """One setting: how to check it, read it from text and explain it."""

    name: str
    kind: str  # "int", "float", "bool", or "str" of one with choices
    default: Any
    help: str
    unit: str = ""
    low: float = -math.inf  # inclusive, as `high`
    high: float = math.inf
    reach: float | None = None  # how far a slider goes, where up to `high` is too wide to aim in
    choices: tuple | None = None
    auto: str = ""  # what None stands for; without it None is not taken
    # "loader": an argument of a DataLoader, under its name there; "workers": one of these that only
    # a loader with workers takes
    part: str = ""
    traits: tuple[Trait, ...] = ()

    @property
    def allowed(self) -> str:
        """The values this knob takes, in words: what every error message ends with."""
        words = ", ".join(map(repr, self.choices or ())) or WORDS[self.kind]
        if self.kind in NUMBERS:
            words = f"{words} from {self.low:g} to {self.high:g} {self.unit}".rstrip()
        return f"{words}, or None ({self.auto})" if self.auto else words

    @property
    def takes_none(self) -> bool:
        """Whether None is a value of it: a choice, or left to the machine."""
        return bool(self.auto) or None in (self.choices or ())

    def check(self, value: object) -> Any:
        """Return `value` as this knob stores it; raise ValueError if it is not allowed."""
        if value is None and self.takes_none:
            return None
        stored = self._convert(value)
        if stored is None:
            raise ValueError(f"{self.name}={value!r} is not allowed: use {self.allowed}.")
        return stored

    def _convert(self, value: object) -> Any:
        """Return `value` as this knob stores it; None where it is not allowed."""
        if self.choices:
            is_one = any(value is choice or value == choice for choice in self.choices)
            return value if is_one else None
        if self.kind == "bool":
            return bool(value) if isinstance(value, int) and value in (0, 1) else None
        number = _number(value, whole=self.kind == "int")
        return number if number is not None and self.low <= number <= self.high else None

    def parse(self, text: str) -> Any:
        """Read the knob from the command line; raise ValueError as `check` does."""
        if text.lower() in ("none", "auto") and self.takes_none:
            return None
        if self.kind == "bool":
            return self.check(SWITCHES.get(text.lower(), text))
        return self.check(text)


def _number(value: Any, whole: bool) -> int | float | None:
    """Return `value` as an int or a finite float, or None where it is neither."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if math.isfinite(number) and (not whole or number.is_integer()):
            return int(number) if whole else number
    return None


def knob(default: Any, help: str, *, kind: str = "", **rules: object) -> Any:
    """Declare a knob as a dataclass field; `rules` are the other fields of `Knob`."""
    kind = kind or type(default).__name__
    return field(default=default, metadata={"kind": kind, "help": help, **rules})


@dataclass(frozen=True, repr=False)
class Spec:
    """What every spec does: checks its knobs, changes by copy, and prints what was changed."""

    knobs: ClassVar[dict[str, Knob]] = {}  # filled by `declares_knobs`

    def __new__(cls, *args: object, **values: object) -> Self:
        """Refuse a name that is no knob with a ValueError that suggests the nearest one."""
        check_names(values, [each.name for each in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, rule in self.knobs.items():
            object.__setattr__(self, name, rule.check(getattr(self, name)))

    def but(self, **changes: object) -> Self:
        """Return a copy with some knobs changed; raises ValueError on a bad one."""
        return replace(self, **changes)

    def to_dict(self) -> Settings:
        """Return every knob and its value, as JSON types."""
        return {name: getattr(self, name) for name in self.knobs}

    def changed(self) -> Settings:
        """Return the knobs that differ from their defaults."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if value != self.knobs[name].default}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({as_typed(self.changed())})"


def as_typed(values: Mapping[str, object]) -> str:
    """Return knobs and their values as they are typed: "num_workers=4, precision='bf16'"."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


SpecType = TypeVar("SpecType", bound=type[Spec])


def declares_knobs(spec: SpecType) -> SpecType:
    """Collect the knobs among a spec's fields."""
    spec.knobs = {
        each.name: Knob(name=each.name, default=each.default, **each.metadata)
        for each in fields(spec)
        if "help" in each.metadata
    }
    return spec


def check_names(values: Iterable[str], known: Iterable[str], what: str = "knob") -> None:
    """Raise ValueError for a name that is no knob, with the nearest one that is."""
    known = list(known)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known)}."
            given = f"{name}={values[name]!r}" if isinstance(values, Mapping) else repr(name)
            raise ValueError(f"Unknown {what} {given}; {hint}")
