"""What records of version 1 say in an older way, in today's words: every such record still loads.

The shipped runs of a CPU name the numbers that stand for None; records made before `lk.measure`
measured functions name their rows otherwise.
"""

from __future__ import annotations

from typing import Any

from labkit.knobs import Settings
from labkit.spec import PX, STEPS

CPU_VALUES = {"image_px": PX, "steps": STEPS}  # that older logs of a CPU have in place of None


def asked_on_a_cpu(knobs: Settings) -> Settings:
    """Return the knobs that a run on a CPU was asked for, with None for what was automatic."""
    return {
        name: None if name in CPU_VALUES and value == CPU_VALUES[name] else value
        for name, value in knobs.items()
    }


def as_of_today(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of a record as today's labkit would write it."""
    name = event["event"]
    if name == "measurement":
        values = {"of": event["of"], **event["case"], **(event.get("values") or {})}
        return {**event, "event": "row", "values": values}
    if name == "skipped":
        values = {"of": event["what"]}
        return {"event": "row", "values": values, "error": event["why"], "kind": "skipped"}
    if name == "spec" and event.get("experiment"):
        return {"measure": event["experiment"], **event}
    return event
