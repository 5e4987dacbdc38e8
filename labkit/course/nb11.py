"""The challenges of notebook 11, the data path."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from pathlib import Path

from labkit.course.task import Goal, Refused, code, counting, difference

ROUNDS = 200
ALL_RIGHT = Goal("share of right answers", at_least=1.0)


def write_tar(path: Path, rng: random.Random) -> dict[str, bytes]:
    """Write a tar with folders, a link and long names; return the content of its files."""
    contents = {}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(20):
            if number % 5 == 0:
                shard = tarfile.TarInfo(f"shard-{number}")
                shard.type = tarfile.DIRTYPE
                tar.addfile(shard)
            name = f"shard-{number}/{'long-' * rng.choice((0, 30))}{number}.jpg"
            contents[name] = rng.randbytes(rng.randrange(1, 3000))
            photo = tarfile.TarInfo(name)
            photo.size = len(contents[name])
            tar.addfile(photo, io.BytesIO(contents[name]))
        link = tarfile.TarInfo("latest.jpg")
        link.type = tarfile.SYMTYPE
        link.linkname = "shard-0/0.jpg"
        tar.addfile(link)
    return contents


@code("11-index",
      "tarfile.open(path) yields members; isreg() says which of them are regular files.",
      "A member's offset is that of its header; its content begins at offset_data.",
      right=ALL_RIGHT)  # fmt: skip
class Index:
    """an index of a tar.

    Write a function of the path of a tar file that returns {name: (offset, size)} of its regular
    files, and nothing else, so that the size bytes from offset on are the content.
    """

    def solution(path):
        import tarfile

        with tarfile.open(path) as tar:
            return {each.name: (each.offset_data, each.size) for each in tar if each.isreg()}

    def check(answer):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "photos.tar")
            contents = write_tar(path, random.Random(1))
            index = answer(str(path))
            if set(index) != set(contents):
                raise Refused("The names are not those of the regular files in the tar.")
            data = path.read_bytes()
        right = 0
        for name, (offset, size) in index.items():
            right += data[offset : offset + size] == contents[name]
        return {"right": right / len(contents)}


@code("11-augment",
      "Numbers of shape (B, 1, 1, 1) are broadcast over the images of a batch.",
      "torch.where chooses between images.flip(-1) and images.",
      error=Goal("largest error, as a share", at_most=1e-5),
      operations=Goal("operations on tensors", at_most=8))  # fmt: skip
class Augment:
    """augment without a loop.

    Write a function of (images, flips, brightness): uint8 (B, 3, H, W), bool (B,), FP32 (B,). It
    returns what the given one does with at most eight operations, whatever B is.
    """

    def start(images, flips, brightness):
        import torch

        done = []
        for image, flip, factor in zip(images, flips, brightness, strict=True):
            image = image.flip(-1) if flip else image
            done.append((image / 255 * factor).clamp(0, 1))
        return torch.stack(done)

    def solution(images, flips, brightness):
        import torch

        flipped = torch.where(flips.view(-1, 1, 1, 1), images.flip(-1), images)
        return (flipped * (brightness / 255).view(-1, 1, 1, 1)).clamp(0, 1)

    def check(answer):
        import torch

        generator = torch.Generator().manual_seed(2)
        errors = []
        operations = []
        for count in (1, 5, 64):
            images = torch.randint(0, 256, (count, 3, 6, 8), generator=generator).to(torch.uint8)
            flips = torch.rand(count, generator=generator) < 0.5
            brightness = 0.5 + torch.rand(count, generator=generator)
            right = Augment.start(images, flips, brightness)
            with counting() as counted:
                found = answer(images.clone(), flips.clone(), brightness.clone())
            errors.append(difference(found, right))
            if counted.bytes < 2 * right.nbytes:  # a multiplication and a clamp move three times it
                raise Refused("It computes where nobody counts: use PyTorch's operations.")
            operations.append(len(counted.names))
        return {"error": max(errors), "operations": max(operations)}


@code("11-choose",
      "cores x 1000 / ms images per second: a path feeds the device if that is enough.",
      "Of those that do, the one with the fewest bytes; of an empty list, min has a default.",
      right=ALL_RIGHT)  # fmt: skip
class Choose:
    """the smallest that feeds the device.

    Write a function of (paths, cores, images_per_s), where paths is {name: (ms of CPU per image,
    bytes per image)}. It returns the name of the path that takes the fewest bytes of those that
    feed the device, or None if none does.
    """

    def solution(paths, cores, images_per_s):
        fed = [name for name, (ms, _) in paths.items() if cores * 1000 / ms >= images_per_s]
        return min(fed, key=lambda name: paths[name][1], default=None)

    def check(answer):
        rng = random.Random(3)
        right = 0
        for _ in range(ROUNDS):
            names = rng.sample(["PIL", "draft", "tar", "Parquet", "array"], 4)
            paths = {name: (rng.uniform(0.1, 8), rng.randrange(10**4, 10**6)) for name in names}
            cores = rng.choice((1, 2, 4, 8, 16))
            images_per_s = rng.choice((300, 1_000, 5_000, 20_000))
            found = answer(dict(paths), cores, images_per_s)
            right += found == Choose.solution(paths, cores, images_per_s)
        return {"right": right / ROUNDS}
