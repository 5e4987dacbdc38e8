"""The slow script's own lines, everything in them slow.

`fixed_step.py` has the same functions, fixed. Both are plain PyTorch.
"""

import json
from types import SimpleNamespace

import torch
from torch import nn

CLASSES = 10
MEAN, DEVIATION = 122.0, 64.0  # of the images' pixels, 0 to 255

# -- the dataset -----------------------------------------------------------------------------------


def open_manifest(text):
    """Return what `load_item` needs of the manifest, the JSON list of files and labels."""
    return text


def load_item(pixels, index, manifest):
    """Return a decoded image as uint8 (3, px, px), and its label."""
    records = [SimpleNamespace(**record) for record in json.loads(manifest)]
    rows = pixels.permute(1, 2, 0).tolist()
    channels = [[[pixel[c] for pixel in row] for row in rows] for c in range(3)]
    return torch.tensor(channels, dtype=torch.uint8), records[index].label


def pack(image):
    """Return an image in the form in which it travels to the device."""
    return image.float() / 255


# -- the step --------------------------------------------------------------------------------------


def to_device(images, device):
    """Copy a batch of images (B, 3, px, px) to the device."""
    on_device = torch.empty_like(images, device=device)
    for line, place in zip(images.flatten(0, 2), on_device.flatten(0, 2), strict=True):
        place.copy_(torch.tensor(line.tolist(), device=device))
    return on_device


def normalize(images):
    """Return images less the pixels' mean, over their deviation."""
    full = 1 if images.dtype == torch.uint8 else 255
    batch = []
    for image in images:
        for line in image.flatten(0, 1).tolist():
            batch.append([(x * full - MEAN) / DEVIATION for x in line])
    return torch.tensor(batch, device=images.device).view(images.shape)


def cross_entropy(logits, labels):
    """Return the mean loss of logits (B, classes)."""
    losses = []
    for row, label in zip(logits, labels, strict=True):
        row = row - row.max()
        total = 0 * row[0]
        for c in range(CLASSES):
            total = total + torch.exp(row[c])
        losses.append(torch.log(total) - row[label.item()])  # .item() waits for the device
    return torch.stack(losses).mean()


# -- the model -------------------------------------------------------------------------------------


class Activation(nn.Module):
    """SiLU as its formula is written: each operator reads and writes all of its data."""

    def forward(self, x):
        """Return x times its sigmoid."""
        return x * (1.0 / (1.0 + torch.exp(-x)))
