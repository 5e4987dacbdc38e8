"""Keys of services in a command or another text, masked: they are known by how they look."""

from __future__ import annotations

import re

from labkit.process.keys import MASK

SECRET_WORDS = {
    "key", "apikey", "token", "secret", "password", "passwd", "pwd", "credential", "credentials",
    "auth",
}  # fmt: skip
LOOKS_LIKE_A_KEY = re.compile(  # of OpenAI, Hugging Face, GitHub, AWS, Slack; a JSON web token
    r"\b(sk-|hf_|gh[pousr]_|github_pat_|AKIA|xox[abprs]-|eyJ)[\w.\-]{8,}"
)


def command_without_keys(command: list[str]) -> list[str]:
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
            shown.append(text_without_keys(word))
        hide_next = secret and not assigned and word.startswith("-")
    return shown


def text_without_keys(text: str) -> str:
    """Return a text with all that looks like a key masked."""
    return LOOKS_LIKE_A_KEY.sub(MASK, text)
