"""What an event of a log has to look like, so that readers can rely on it."""

from __future__ import annotations

import math
from collections.abc import Callable

MAX_RANKS = 64  # of one machine
MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count

Check = Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < MOST


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_number(value: object) -> bool:
    return _is_whole(value) or (type(value) is float and math.isfinite(value))


def _is_number_or_gap(value: object) -> bool:
    return value is None or _is_number(value)


def _is_duration(value: object) -> bool:
    return _is_count(value) or (type(value) is float and 0 <= value < math.inf)


def _is_rank_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_RANKS


def _is_unit(value: object) -> bool:
    return value in ("samples", "batches")


def _list_of(check: Check, size: int | None = None) -> Check:
    """Return the check of a list whose items pass `check`, `size` of them where given."""

    def is_such_list(value: object) -> bool:
        if not isinstance(value, list) or size not in (None, len(value)):
            return False
        return all(map(check, value))

    return is_such_list


def _dict_of(check: Check) -> Check:
    """Return the check of a dict whose values pass `check`."""

    def is_such_dict(value: object) -> bool:
        return isinstance(value, dict) and all(map(check, value.values()))

    return is_such_dict


def _is_process(value: object) -> bool:
    """Return whether it names a process of the machine, with the cores it used where known."""
    if not isinstance(value, dict):
        return False
    return (
        _is_text(value.get("name"))
        and _is_count(value.get("pid"))
        and _is_number(value.get("cores", 0))
    )


def _is_place(value: object) -> bool:
    """Return whether it is a sampled place, see `bench.stack.Place`."""
    match value:
        case [str(), str(), str(), int(), str(), str(), None | [str(), int(), str()]]:
            return True
    return False


# {event: [(check, the keys that it is for)]}; a key with ? may be missing or null
SHAPES: dict[str, list[tuple[Check, str]]] = {
    "spec": [
        (_is_whole, "version"), (_is_text, "run utc? experiment? measure?"),
        (_is_dict, "pipeline watched? params?"), (_list_of(_is_dict), "points?"),
        (_is_rank_count, "ranks?"), (_is_switch, "no_sync?"), (_dict_of(_is_dict), "starve?"),
        (_dict_of(_is_count), "place?"),
    ],
    "machine": [
        (_is_text, "device kind name cpu_name? os? uuid? compute_capability? driver? pcie? "
         "unused_gpu? cores_limit?"),
        (_is_number, "memory_gib? cpu_cores? host_cores? ram_gib? shm_gib? threads? sm_count?"),
        (_is_dict, "versions"),
    ],
    "job": [(_is_dict, "pipeline not_applied"), (_is_unit, "unit?")],
    "stage": [(_is_text, "name"), (_is_count, "done? total?")],
    "begin": [(_is_count, "warmup")],
    "epoch": [(_is_count, "step n? began?")],
    "pass": [(_is_count, "n began ended"), (_is_switch, "trains?")],
    "saved": [(_is_count, "began ended")],
    "hang": [
        (_is_duration, "seconds"), (_is_count, "pid t_ns worker?"), (_is_text, "text line?"),
    ],
    "headroom": [(_is_number, "factor? low? high?")],
    "step": [
        (_is_count, "i n cpu?"), (_list_of(_is_whole, 4), "t"),
        (_list_of(_is_whole, 2), "copy? busy?"),
        (_list_of(_is_count, 2), "comm? tokens?"), (_is_number, "loss?"),
    ],
    "items": [(_is_whole, "worker"), (_is_list, "rows")],
    "suspended": [(_is_duration, "seconds")],
    "lines": [
        (_is_count, "pid"), (_dict_of(_is_place), "places"),
        (_list_of(_list_of(_is_whole, 3)), "rows"),
    ],
    "no_lines": [(_is_text, "why")],
    "handoff": [(_is_whole, "bytes")],
    "telemetry": [
        (_is_whole, "t_ns"), (_list_of(_list_of(_is_number, 2)), "gpu?"),
        (_dict_of(_is_number_or_gap), "gpm?"),
    ],
    "beside": [(_list_of(_is_process), "processes")],
    "on_the_card": [(_list_of(_is_process), "processes")],
    "measurement": [(_is_text, "of"), (_is_dict, "case"), (_is_list, "seconds")],
    "row": [(_is_dict, "values"), (_is_list, "seconds?"), (_is_text, "error?")],
    "skipped": [(_is_text, "what why")],
    "work": [
        (_is_count, "flops bytes held_bytes parameters samples cache_bytes?"),
        (_is_text, "precision"), (_dict_of(_is_number), "roof?"),
    ],
    "memory": [(_is_count, "peak_bytes?")],
    "clock": [(_is_text, "why")],
    "compiled": [(_is_number, "seconds?")],
    "xray": [(_is_whole, "steps")],
    "no_xray": [(_is_text, "why")],
    "ranks_ended": [(_is_dict, "codes")],
    "error": [
        (_is_text, "kind message traceback?"), (_is_dict, "workers?"), (_is_list, "files?"),
        (_is_count, "failed_rank?"),
    ],
    "end": [(_is_text, "stop? why?"), (_is_whole, "code?")],
}  # fmt: skip
RULES: dict[str, list[tuple[str, Check]]] = {
    event: [(key, check) for check, keys in shape for key in keys.split()]
    for event, shape in SHAPES.items()
}


def is_sound(event: object) -> bool:
    """Return whether a line is an event, with what readers rely on as `SHAPES` has it."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    rest = dict(event)  # what no rule is about: only its numbers are checked
    name = rest.pop("event")
    for key, check in RULES.get(name, ()):
        value = rest.pop(key.rstrip("?"), None)
        may_lack = value is None and key.endswith("?")
        if not may_lack and not check(value):
            return False
    if name == "telemetry":
        return all(map(_is_number_or_gap, rest.values()))
    rank = rest.pop("of_rank", 0)
    if type(rank) is not int or rank not in range(MAX_RANKS):
        return False
    return all(_is_number(value) for value in rest.values() if type(value) in (int, float))
