"""What an event of a log has to look like and how large it may be, so that readers can rely on it.

`data/events.csv` is the table: a row a key ("*": any other), with what it holds, and its range; of
a text, a list or an object, how long it may be. Behind a colon stands what a list or an object
holds; a "?" says that the key may be missing, or null.
"""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parents[1] / "data" / "events.csv"
MOST = 2**62  # of a number: a time in ns, a size in bytes, a count
LONGEST_TEXT = 10_000  # characters, where the table has no number
TYPES = {  # of JSON's values, by their name in the table
    "number": (int, float),
    "whole": int,
    "count": int,
    "text": str,
    "list": list,
    "object": dict,
    "flag": bool,
    "index": (int, str),  # an item's index, or its key
    "any": object,
}


class Rule(NamedTuple):
    """What the value of one key has to be."""

    kind: str  # a name in `TYPES`, or of a part of an event, which the table has too
    optional: bool
    least: float
    most: float
    of: Rule | None  # each value in a list or an object


def fits(values: object, shape: str) -> bool:
    """Return whether `values` has what the table says of an event, or of a part of one.

    What the table has by position is a list, everything else an object.
    """
    rules = _shapes().get(shape) or _shapes()["event"]
    if not isinstance(values, list if "0" in rules else dict):
        return False
    known: Any = values
    if isinstance(values, list):
        known = {str(place): value for place, value in enumerate(values)}
    others = rules.get("*")
    keys = rules.keys() | known.keys()
    return all(_keeps(rules.get(key, others), known.get(key)) for key in keys)


def fields_in(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of the fields of a dataclass; keys of other versions are left out."""
    known = kind.__dataclass_fields__
    return {name: value for name, value in values.items() if name in known}


def _keeps(rule: Rule | None, value: Any) -> bool:
    """Return whether a value is what its rule says; without a rule there may be none."""
    if rule is None or value is None:
        return rule is not None and rule.optional
    if rule.kind not in TYPES:
        return fits(value, rule.kind)
    size = len(value) if isinstance(value, (str, list, dict)) else value
    parts = value.values() if isinstance(value, dict) else value
    return (
        isinstance(value, TYPES[rule.kind])
        and (type(value) is not bool or rule.kind in ("flag", "any"))
        and rule.least <= size <= rule.most  # not NaN
        and (rule.of is None or all(_keeps(rule.of, each) for each in parts))
    )


@functools.cache
def _shapes() -> dict[str, dict[str, Rule]]:
    """Return the rule of each key of each event, and of each part of one."""
    rules: dict[str, dict[str, Rule]] = defaultdict(dict)
    for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
        rules[row["event"]][row["key"]] = _rule(row["what"], row["least"], row["most"])
    return {shape: own if "0" in own else rules["event"] | own for shape, own in rules.items()}


def _rule(what: str, least: str = "", most: str = "") -> Rule:
    """Return the rule that the table writes as `what`, "list:number?"."""
    kind, _, of = what.removesuffix("?").partition(":")
    low = float(least or (0 if kind == "count" else -MOST))
    high = float(most or (LONGEST_TEXT if kind == "text" else MOST))
    return Rule(kind, what.endswith("?"), low, high, _rule(of) if of else None)
