"""What leaves a record before others see it: folders, names, process ids, other programs, keys."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Iterable, Iterator
from functools import partial

from labkit.results.masked_keys import text_without_keys
from labkit.results.record import Event
from labkit.results.text import with_texts

# A folder, up to its last separator: names may hold blanks
FOLDER = re.compile(r"""(?<![\w.)/\\])(?:[A-Za-z]:)?[/\\](?!\s)(?:[^"'<>|*?\n/\\]*[/\\])+""")
NAMES_OTHERS = ("beside", "on_the_card")  # events about other programs of the machine
CELL = re.compile(r"ipykernel_\d+[/\\]")
PID = re.compile(r"\b(pid|process|worker)(\W{1,3})\d+")
LONGEST_KEPT = 2  # characters of a user's name, which may be an ordinary word


class Numbers(dict[int, int]):
    """A number for each process id, so that what belongs together in a record still does."""

    def __missing__(self, pid: int) -> int:
        self[pid] = len(self) + 1
        return self[pid]


def anonymous(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a record without folders, the names of user and machine, and keys.

    Nor are process ids kept, or other programs named. Of a path the file's name stays.
    """
    names = _names_here()
    renumbered = partial(_renumbered, numbers=Numbers())
    for line in lines:
        try:
            event = json.loads(line, object_hook=renumbered)
        except ValueError:  # torn by a kill
            continue
        if isinstance(event, dict) and event.get("event") not in NAMES_OTHERS:
            scrubbed = with_texts(event, lambda text: _scrubbed(text, names), str)
            yield f"{json.dumps(scrubbed, separators=(',', ':'))}\n".encode()


def _names_here() -> dict[str, str]:
    """Return {a name of this machine or its user: what is written in its place}."""
    host = platform.node()
    names = dict.fromkeys({host, host.partition(".")[0]} - {"", "localhost"}, "<name>")
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # an id without a name
        user = ""
    if len(user) > LONGEST_KEPT:
        names[user] = "user"
    return names


def _renumbered(values: Event, numbers: Numbers) -> Event:
    """Put numbers in the place of process ids, where an object of a record has them."""
    pids = values.get("pids")
    workers = values.get("workers")
    if isinstance(values.get("pid"), int):
        values["pid"] = numbers[values["pid"]]
    if isinstance(pids, list):
        values["pids"] = [numbers[pid] for pid in pids if isinstance(pid, int)]
    if isinstance(workers, dict):  # how each ended
        ended = {}
        for pid, how in workers.items():
            ended[str(numbers[int(pid)]) if pid.isdigit() else pid] = how
        values["workers"] = ended
    return values


def _scrubbed(text: str, names: dict[str, str]) -> str:
    """Return a text without what `anonymous` leaves out."""
    text = FOLDER.sub(_cell_or_nothing, text_without_keys(text))
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(name)}\b", names[name], text)
    return PID.sub(r"\1\g<2>0", text)


def _cell_or_nothing(folder: re.Match[str]) -> str:
    return "ipykernel_0/" if CELL.search(folder.group()) else ""
