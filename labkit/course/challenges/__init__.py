"""The challenges of the course, by what they are answered with: settings, Python, PyTorch.

A challenge is a `KnobChallenge`, answered with settings, or a `CodeChallenge`, a check of a
function or a class: its docstring is the title and the task. Both are found by being in the file; a
key begins with the notebook's number.
"""

from labkit.course.challenge import Challenge
from labkit.course.challenges import code, knobs
from labkit.knobs import check_names

_POSED = [*vars(code).values(), *vars(knobs).values()]
CHALLENGES = {each.key: each for each in _POSED if isinstance(each, Challenge)}


def challenge(key: str) -> Challenge:
    """Return the challenge `key`, such as "02-feed"; raises ValueError where there is none."""
    check_names([key], sorted(CHALLENGES), "challenge")
    return CHALLENGES[key]
