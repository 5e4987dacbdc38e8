"""What records of version 1 say in an older way, in today's words: every such record still loads.

Those made before `lk.measure` measured functions name their rows otherwise.
"""

from __future__ import annotations

from typing import Any


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
