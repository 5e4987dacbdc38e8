"""What others are not to see: folders, names, other programs, items of the data.

A record keeps no secret, see `stamps.keys`; here is what also goes before it, or a page about it,
is given to somebody.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from labkit.results.failures import known_reason
from labkit.stamps.keys import masked
from labkit.text import with_texts

# A folder, up to its last separator: names may hold blanks within
NAMED = r"""[^"'<>|*?\s/\\](?:[^"'<>|*?\n/\\]*[^"'<>|*?\s/\\])?"""
FOLDER = re.compile(rf"(?<![\w.)/\\])(?:[A-Za-z]:)?[/\\](?:{NAMED}[/\\])+")
NAMES_OTHERS = ("beside", "on_the_card")  # events about other programs of the machine
LONGEST_KEPT = 2  # characters of a user's name, which may be an ordinary word
SCRIPTS = (".py", ".sh", ".ipynb", ".exe")
RUNS_MODULES = re.compile(r"(python|pypy|torchrun|accelerate|deepspeed)[\w.]*")


def anonymous(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a record without folders and the names of user and machine.

    Nor are other programs and items of the data named. Of a path the file's name stays; of an error
    its type, and the words that its remedy is known by.
    """
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        name = event.get("event")
        if name == "error":
            event |= {"message": known_reason(str(event.get("message"))), "traceback": None}
        if name == "row" and event.get("error"):
            event["error"] = str(event["error"]).partition(":")[0]
        if name not in NAMES_OTHERS:
            scrubbed = with_texts(event, for_others, str)
            yield f"{json.dumps(scrubbed, separators=(',', ':'))}\n".encode()


def shown_command(command: list[str]) -> list[str]:
    """Return the program of a command and the script or module that it runs, without folders.

    What else stands in a command may be a secret.
    """
    program = Path(command[0]).name
    for place, word in enumerate(command[1:], 1):
        if word == "-c":
            break
        if word == "-m" and RUNS_MODULES.fullmatch(program):
            return [program, *command[place : place + 2]]
        if word.endswith(SCRIPTS) and not word.startswith("-") and "=" not in word:
            return [program, Path(word).name]
    return [program]


def for_others(text: str) -> str:
    """Return a text about a run without secrets, folders and the names of user and machine."""
    text = FOLDER.sub("", masked(text, []))
    for name, shown in _names_here().items():
        text = re.sub(rf"\b{re.escape(name)}\b", shown, text)
    return text


def _names_here() -> dict[str, str]:
    """Return {a name of this machine or its user: what is written in its place}."""
    host = platform.node()
    names = dict.fromkeys({host, host.partition(".")[0]} - {"", "localhost"}, "<name>")
    with contextlib.suppress(OSError, KeyError):  # an id without a name
        if len(user := getpass.getuser()) > LONGEST_KEPT:
            names[user] = "user"
    return {name: names[name] for name in sorted(names, key=len, reverse=True)}
