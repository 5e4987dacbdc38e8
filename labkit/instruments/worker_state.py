"""What builds up in a loader's worker: threads that libraries compute with, and a cache.

No code of the user's runs: only built-in containers and `functools`' caches are asked for entries.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.instruments.before_calls import held
from labkit.instruments.loader_clocks import thread_times

COMPUTES = 0.25  # of the CPU time of the worker's own thread, that another one has which computes
MAPPINGS = (dict, OrderedDict, defaultdict)
NUMBERS = (int, float, bool, type(None))  # a mapping to these counts something, and is no cache
DEEP = 3  # objects within objects, as of a dataset that wraps another one
MOST_OBJECTS = 64


def cpu_of_threads() -> dict[int, int]:
    """Return the CPU time of each thread of this process by its number, ns; {} outside Linux."""
    return {int(task.name): spent_ns for task, spent_ns, _ in thread_times("self")}


class WorkerState:
    """Looks at a worker from its start on, where only its own threads are there."""

    def __init__(self, dataset: object):
        self.dataset = dataset
        self.threads = set(cpu_of_threads())
        self.entries = dict(entries_of(dataset))

    def library_threads(self) -> int:
        """Return how many threads compute that neither the worker nor Python has started."""
        spent_ns = cpu_of_threads()
        least = max(1.0, COMPUTES * spent_ns.get(threading.get_native_id(), 0))
        own = self.threads | {thread.native_id for thread in threading.enumerate()}
        return sum(ns >= least for number, ns in spent_ns.items() if number not in own)

    def cached(self) -> tuple[str, int] | None:
        """Return the cache that took up most entries since the start, and how many; or None."""
        before = self.entries
        gained = [
            (count - before[name], name)
            for name, count in entries_of(self.dataset)
            if name in before
        ]
        most, name = max(gained, default=(0, ""))
        return (name, most) if most > 0 else None


def entries_of(dataset: object) -> Iterator[tuple[str, int]]:
    """Yield each thing that may be a cache of a dataset, and how many entries it has.

    That are its attributes, those of what it holds, and what its class has.
    """
    objects = [("self.", dataset, 0)]
    for place, (prefix, thing, depth) in enumerate(objects):  # grows meanwhile
        attributes = held(thing)
        yield from _caches(prefix, attributes)
        if depth < DEEP and place < MOST_OBJECTS:
            for name, each in attributes.items():
                if held(each) and type(each).__module__ != "builtins":  # no module, no function
                    objects.append((f"{prefix}{name}.", each, depth + 1))
    for kind in type(dataset).__mro__:
        yield from _caches("", vars(kind))


def _caches(prefix: str, names: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue  # Python's own, which may come and go
        if type(value) is functools._lru_cache_wrapper:
            yield f"{prefix}{name}", value.cache_info().currsize
        elif type(value) in MAPPINGS and type(next(reversed(value.values()), "")) not in NUMBERS:
            yield f"{prefix}{name}", len(value)
