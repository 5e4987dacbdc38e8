"""The keys of services in the environment: the user's code needs them, a log may not hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping

KEY_ENDINGS = ("API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "TOKEN", "SECRET", "PASSWORD")
SHORTEST_KEY = 8  # characters: a shorter value stands in other words too
MASK = "***"


def _is_key(name: str) -> bool:
    return name.upper().endswith(KEY_ENDINGS)


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the keys of services, for processes that need none of them."""
    return {name: value for name, value in environment.items() if not _is_key(name)}


def keys_in(environment: Mapping[str, str]) -> list[str]:
    """Return the values that no log may hold, the longest first; as they are, and as in JSON."""
    found = set()
    for name, value in environment.items():
        if _is_key(name) and len(value) >= SHORTEST_KEY and not value.isdigit():
            found |= {value, json.dumps(value)[1:-1]}
    return sorted(found, key=len, reverse=True)


def masked(text: str, keys: list[str]) -> str:
    """Return `text` with `MASK` in the place of each key."""
    for key in keys:
        text = text.replace(key, MASK)
    return text
