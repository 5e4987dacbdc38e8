"""The challenges of notebook 11, the data path."""

import random

import torch
from torch import Tensor

from labkit.course.challenge import Answer
from labkit.course.checking import ALL_RIGHT, ERROR, Counting, difference, share_right
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal

OPERATIONS = "operations on tensors"
ROUNDS = 30

Paths = dict[str, tuple[float, int]]  # ms of CPU and bytes of an image


def one_by_one(images: Tensor, flips: Tensor, brightness: Tensor) -> Tensor:
    """Return what the task asks for, image by image."""
    done = []
    for image, flip, factor in zip(images, flips, brightness, strict=True):
        image = image.flip(-1) if flip else image
        done.append((image / 255 * factor).clamp(0, 1))
    return torch.stack(done)


def whole_batch(images: Tensor, flips: Tensor, brightness: Tensor) -> Tensor:
    """Flip and brighten all images of a batch at once."""
    flipped = torch.where(flips.view(-1, 1, 1, 1), images.flip(-1), images)
    return (flipped * (brightness / 255).view(-1, 1, 1, 1)).clamp(0, 1)


@code(
    "11-augment",
    hints=(
        "Numbers of shape (B, 1, 1, 1) are broadcast over the images of a batch.",
        "torch.where chooses between images.flip(-1) and images.",
    ),
    goals=(Goal(ERROR, at_most=1e-5), Goal(OPERATIONS, at_most=8)),
    example=whole_batch,
)
def augment(answer: Answer) -> Numbers:
    """Augment without a loop.

    Write a function of (images, flips, brightness): uint8 (B, 3, H, W), bool (B,), FP32 (B,). It
    returns what the one in the notebook does with at most eight operations, whatever B is.
    """
    errors = []
    operations = []
    for count in (1, 5, 64):
        images = torch.randint(0, 256, (count, 3, 6, 8)).to(torch.uint8)
        flips = torch.rand(count) < 0.5
        brightness = 0.5 + torch.rand(count)
        right = one_by_one(images, flips, brightness)
        with Counting() as counted:
            found = answer(images.clone(), flips.clone(), brightness.clone())
        errors.append(difference(found, right))
        if counted.bytes < 2 * right.nbytes:  # a multiplication and a clamp move three times it
            raise Refused("It computes outside PyTorch, where nothing is counted.")
        operations.append(len(counted.names))
    return {ERROR: max(errors), OPERATIONS: max(operations)}


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
    generator = random.Random(3)
    cases = []
    for _ in range(ROUNDS):
        names = generator.sample(["PIL", "draft", "tar", "Parquet", "array"], 4)
        paths = {
            name: (generator.uniform(0.1, 8), generator.randrange(10**4, 10**6)) for name in names
        }
        cores = generator.choice((1, 2, 4, 8, 16))
        images_per_s = generator.choice((300, 1_000, 5_000, 20_000))
        asked = (paths, cores, images_per_s)
        cases.append((asked, smallest_that_feeds(*asked)))
    return share_right(answer, cases)
