"""What others are not to see: folders, names, arguments of commands.

A record keeps no secret, see `stamps.keys`; here is what also goes before a page about it is given
to somebody.
"""

from __future__ import annotations

import itertools
import platform
import re
from pathlib import Path

from labkit.stamps.keys import mask_secrets

# A folder, up to its last separator: names may hold blanks within
NAMED = r"""[^"'<>|*?\s/\\](?:[^"'<>|*?\n/\\]*[^"'<>|*?\s/\\])?"""
FOLDER = re.compile(rf"(?<![\w.)/\\])(?:[A-Za-z]:)?[/\\](?:{NAMED}[/\\])+")
SCRIPTS = (".py", ".sh", ".ipynb", ".exe")
RUNS_MODULES = re.compile(r"(python|pypy|torchrun|accelerate|deepspeed)[\w.]*")


def script_of(command: list[str]) -> str:
    """Return the script or module that a command runs, without folders, or else its program.

    What else stands in a command may be a secret.
    """
    program = Path(command[0]).name
    for word, following in itertools.pairwise([*command[1:], ""]):
        if word == "-c":
            break
        if word == "-m" and RUNS_MODULES.fullmatch(program):
            return following or program
        if word.endswith(SCRIPTS) and not word.startswith("-") and "=" not in word:
            return Path(word).name
    return program


def for_others(text: str) -> str:
    """Return a text about a run without secrets, folders and the names of user and machine."""
    text = FOLDER.sub("", mask_secrets(text, []))
    for name in (platform.node(), platform.node().partition(".")[0], Path.home().name):
        if name:
            text = re.sub(rf"\b{re.escape(name)}\b", "<name>", text)
    return text
