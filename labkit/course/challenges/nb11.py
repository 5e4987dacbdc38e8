"""The challenges of notebook 11, the data path."""

import random

from labkit.course.challenge import Answer
from labkit.course.checking import ALL_RIGHT, share_right
from labkit.course.code_challenge import Numbers, code

ROUNDS = 30

Paths = dict[str, tuple[float, int]]  # ms of CPU and bytes of an image


def smallest_that_feeds(paths: Paths, cores: int, images_per_s: float) -> str | None:
    """Return the path of fewest bytes of those that are fast enough; None where none is."""
    fed = [name for name, (ms, _) in paths.items() if cores * 1000 / ms >= images_per_s]
    return min(fed, key=lambda name: paths[name][1], default=None)


@code(
    "11-choose",
    hints=(
        "cores * 1000 / ms images per second: a path feeds the device if that is enough.",
        "Of those that do, the one with the fewest bytes; of an empty list, min has a default.",
    ),
    goals=(ALL_RIGHT,),
    example=smallest_that_feeds,
)
def choose(answer: Answer) -> Numbers:
    """The smallest that feeds the device.

    Write a function of (paths, cores, images_per_s), where paths is {name: (ms of CPU per image,
    bytes per image)}. It returns the name of the path that takes the fewest bytes of those that
    feed the device, or None if none does.
    """
    cases = []
    for _ in range(ROUNDS):
        names = random.sample(["PIL", "draft", "tar", "Parquet", "array"], 4)
        paths = {name: (random.uniform(0.1, 8), random.randrange(10**4, 10**6)) for name in names}
        cases.append((paths, random.choice((1, 2, 4, 16)), random.choice((300, 5_000, 20_000))))
    return share_right(answer, smallest_that_feeds, cases)
