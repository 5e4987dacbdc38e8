"""The functions of `slow_step.py`, fixed: the same samples, the same losses."""

import json

import torch
from torch import nn

from labkit.course.slow_step import DEVIATION, MEAN

# -- the dataset -----------------------------------------------------------------------------------


def open_manifest(text):
    """Return what `load_item` needs of the manifest, the JSON list of files and labels."""
    return [record["label"] for record in json.loads(text)]


def load_item(pixels, index, labels):
    """Return a decoded image as uint8 (3, px, px), and its label."""
    return pixels, labels[index]


def pack(image):
    """Return an image in the form in which it travels to the device."""
    return image


# -- the step --------------------------------------------------------------------------------------


def to_device(images, device):
    """Copy a batch of images (B, 3, px, px) to the device."""
    return images.to(device, non_blocking=True)


def normalize(images):
    """Return images less the pixels' mean, over their deviation."""
    full = 1 if images.dtype == torch.uint8 else 255
    return (images.float() * full - MEAN) / DEVIATION


def cross_entropy(logits, labels):
    """Return the mean loss of logits (B, classes)."""
    return nn.functional.cross_entropy(logits, labels)


# -- the model -------------------------------------------------------------------------------------


class Activation(nn.Module):
    """SiLU as one operator: one pass over memory."""

    def forward(self, x):
        """Return x times its sigmoid."""
        return nn.functional.silu(x)
