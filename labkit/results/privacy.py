"""What leaves a record, or a printed command, before others see it: keys, names, paths, pids."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Iterable, Iterator

from labkit.process.keys import MASK
from labkit.results.record import Event
from labkit.results.text import with_texts

SECRET_WORDS = {
    "key", "apikey", "token", "secret", "password", "passwd", "pwd", "credential", "credentials",
    "auth",
}  # fmt: skip
LOOKS_LIKE_A_KEY = re.compile(  # of OpenAI, Hugging Face, GitHub, AWS, Slack; a JSON web token
    r"\b(sk-|hf_|gh[pousr]_|github_pat_|AKIA|xox[abprs]-|eyJ)[\w.\-]{8,}"
)
# a folder, up to its last separator: names may hold blanks
FOLDER = re.compile(r"""(?<![\w.)/\\])(?:[A-Za-z]:)?[/\\](?!\s)(?:[^"'<>|*?\n/\\]*[/\\])+""")
NAMES_OTHERS = ("beside", "on_the_card")  # events about other programs of the machine
CELL = re.compile(r"ipykernel_\d+[/\\]")
PID = re.compile(r"\b(pid|process|worker)(\W{1,3})\d+")


def without_keys(command: list[str]) -> list[str]:
    """Return a command with the values of options and variables that look like keys masked."""
    shown = []
    hide_next = False
    for word in command:
        name, assigned, _ = word.partition("=")
        secret = not SECRET_WORDS.isdisjoint(re.split(r"[-_.]+", name.lower()))
        if hide_next and not word.startswith("-"):
            shown.append(MASK)
        elif secret and assigned:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(LOOKS_LIKE_A_KEY.sub(MASK, word))
        hide_next = secret and not assigned and word.startswith("-")
    return shown


def anonymous(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a record without folders, the names of user and machine, and keys.

    Nor are process ids kept, or other programs named.

    A process id becomes a number of its own, so that what belongs together still does; of a path
    the file's name stays.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # an id without a name
        user = ""
    hosts = {platform.node(), platform.node().partition(".")[0]} - {"", "localhost"}
    numbers: dict[int, int] = {}

    def number(pid: int) -> int:
        return numbers.setdefault(pid, len(numbers) + 1)

    def renumbered(values: Event) -> Event:
        pids = values.get("pids")
        workers = values.get("workers")
        if isinstance(values.get("pid"), int):
            values["pid"] = number(values["pid"])
        if isinstance(pids, list):
            values["pids"] = [number(pid) for pid in pids if isinstance(pid, int)]
        if isinstance(workers, dict):  # how each ended
            values["workers"] = {
                str(number(int(pid))) if pid.isdigit() else pid: how for pid, how in workers.items()
            }
        return values

    for line in lines:
        try:
            event = json.loads(line, object_hook=renumbered)
        except ValueError:  # torn by a kill
            continue
        if isinstance(event, dict) and event.get("event") not in NAMES_OTHERS:
            scrubbed = with_texts(event, lambda text: _scrubbed(text, user, hosts), str)
            yield f"{json.dumps(scrubbed, separators=(',', ':'))}\n".encode()


def _scrubbed(text: str, user: str, hosts: set[str]) -> str:
    """Return a text without what `anonymous` leaves out."""
    text = FOLDER.sub(_cell_or_nothing, LOOKS_LIKE_A_KEY.sub(MASK, text))
    if len(user) > 2:
        text = re.sub(rf"\b{re.escape(user)}\b", "user", text)
    for host in sorted(hosts, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(host)}\b", "<name>", text)
    return PID.sub(r"\1\g<2>0", text)


def _cell_or_nothing(folder: re.Match[str]) -> str:
    return "ipykernel_0/" if CELL.search(folder.group()) else ""
