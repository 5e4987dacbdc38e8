"""A knob and a spec of knobs: declared once, checked, read from text and explained by one code."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar


@dataclass(frozen=True)
class Knob:
    """One setting of a pipeline: how to check it, read it from text and explain it.

    `low` and `high` are inclusive, in `unit`. `auto` says what `None` stands for; a knob without
    it does not take `None`.
    """

    name: str
    kind: str  # "int", "float", "bool", "str" or "dict"
    default: Any
    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple | None = None
    pattern: re.Pattern | None = None
    auto: str = ""
    each: bool = False  # takes a list of such values as well

    @property
    def allowed(self) -> str:
        """The values this knob takes, in words: what every error message ends with."""
        if self.choices:
            words = ", ".join(repr(choice) for choice in self.choices)
        elif self.kind == "bool":
            words = "True or False"
        elif self.pattern:
            words = "'auto', 'cpu', 'mps', 'cuda' or 'cuda:N'"
        elif self.kind in ("str", "dict"):
            words = "a text" if self.kind == "str" else "a dict"
        else:
            number = "a whole number" if self.kind == "int" else "a number"
            words = f"{number} from {self.low:g} to {self.high:g} {self.unit}".rstrip()
        words += ", or a list of them" if self.each else ""
        return f"{words}, or None ({self.auto})" if self.auto else words

    def check(self, value: Any) -> Any:
        """Return `value` as this knob stores it; raise ValueError if it is not allowed."""
        if value is None and self.auto:
            return None
        if self.each and isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"{self.name}=[] is not allowed: use at least one value.")
            return [replace(self, each=False, auto="").check(one) for one in value]
        if self.choices:
            if any(value is choice or value == choice for choice in self.choices):
                return value
        elif self.kind == "bool":
            if isinstance(value, (bool, int)) and value in (0, 1):
                return bool(value)
        elif self.pattern:
            if isinstance(value, str) and self.pattern.fullmatch(value):
                return value
        elif self.kind in ("str", "dict"):
            if isinstance(value, str if self.kind == "str" else Mapping):
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
        if self.each and "," in text:
            return [replace(self, each=False).parse(one.strip()) for one in text.split(",")]
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
    """Declare a knob as a dataclass field.

    Its kind follows from the default where it has one; a default that is a list takes lists.
    """
    if isinstance(default, list):
        kind, rules["each"] = kind or type(default[0]).__name__, True
    kind = kind or type(default).__name__
    return field(default=default, metadata={"kind": kind, "help": help, **rules})


class Spec:
    """What every spec does: checks its knobs, changes by copy, and prints what was changed."""

    knobs: ClassVar[dict[str, Knob]] = {}  # filled by `declares_knobs`

    def __new__(cls, *args: Any, **values: Any) -> Any:
        """Refuse a name that is no knob with a ValueError that suggests the nearest one."""
        check_names(values, {f.name for f in fields(cls)})
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, rule in self.knobs.items():
            object.__setattr__(self, name, rule.check(getattr(self, name)))

    def but(self, **changes: Any) -> Any:
        """Return a copy with some knobs changed; raises ValueError on a bad one."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return every knob and its value, as JSON types."""
        return {name: getattr(self, name) for name in self.knobs}

    def changed(self) -> dict[str, Any]:
        """Return the knobs that differ from their defaults."""
        return {n: v for n, v in self.to_dict().items() if v != self.knobs[n].default}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"{type(self).__name__}({shown})"


def declares_knobs(spec: type) -> type:
    """Collect the knobs among a spec's fields."""
    declared = [f for f in fields(spec) if "help" in f.metadata]
    spec.knobs = {f.name: Knob(name=f.name, default=f.default, **f.metadata) for f in declared}
    return spec


def check_names(values: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for a name that is no knob, with the nearest one that is."""
    known = list(known)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known)}."
            given = f"{name}={values[name]!r}" if isinstance(values, Mapping) else repr(name)
            raise ValueError(f"Unknown knob {given}; {hint}")
