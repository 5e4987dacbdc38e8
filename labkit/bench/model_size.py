"""Size the model for the device, where its pipeline leaves that open.

On a CPU a step of 5 to 6 ms on one core. On a GPU the depth is found by timing: 10 ms a step, so
that the default loader starves any card, for the default batch in FP32; on a card that is too slow
for one layer of it the model is narrower. What was found is kept for later runs: by card, driver
and PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import torch

from labkit import quotas
from labkit.bench import devices, machine
from labkit.bench.data import IMAGE_CLASSES, noise_batch
from labkit.bench.kept_files import keep
from labkit.bench.loop import Trainer
from labkit.bench.models import MODELS
from labkit.process import folders
from labkit.process.events import now_ns
from labkit.process.folder_rights import text_of
from labkit.spec import KNOBS, PX, Job

ON_CPU = {"cnn": (16, 2), "mlp": (128, 3), "transformer": (64, 2)}  # width and depth
TEXTBOOK = 2  # a CPU's 50 ms delay goes with 10 ms of compute, and takes no core from the model
WIDTH_ON_GPU = {"cnn": 320, "mlp": 8192, "transformer": 1024}
STATED_WIDTH_DEPTH = 6  # layers of a GPU's model whose width is stated
COPIES = 5  # of the weights in training: gradients, AdamW's two, and one while it updates
MOST_MEMORY = 0.5  # of a device's, for those of the deepest model that is probed
STEP_MS = 10.0
PROBED = (1, 3)  # layers; a line through their times tells the depth
DEEPEST = 64
TOO_WIDE = 0  # the depth of a width of which one layer takes too long
HALVINGS = 2  # of a width for speed: a sixteenth of the arithmetic
WARM_S = 0.5  # of load before anything is timed: an idle card's clocks take so long to rise
OFF = 0.3  # a depth whose own time is so far from STEP_MS is looked for again
TRIES = 3
DESKTOP = 0.1  # of a card's time: what drawing a desktop takes at the most
LOAD_SIDE = 2048  # rows of the products of the load
STEPS_A_ROUND = 3  # in a round
ROUNDS = 3  # after one that warms up


def fill(job: Job, device: torch.device) -> None:
    """Set `job.width` and `job.depth` where they are None; of images too, if nobody has."""
    job.image_px = job.image_px or PX
    if device.type == "cpu":
        width, depth = ON_CPU[job.model]
        if job.dataset == "sleep":
            depth *= TEXTBOOK
        job.width = job.width or width
        job.depth = job.depth or depth
        return
    if job.width is None:
        job.width = WIDTH_ON_GPU[job.model]
        if job.model == "cnn" and job.image_px > PX:  # as much arithmetic a layer on larger images
            job.width = max(32, round(job.width * PX / job.image_px / 32) * 32)
        job.width = width_that_fits(job, device)
        asked = job.depth
        fit_speed(job, device)  # a stated depth has the same width as the default one
        job.depth = asked or job.depth
    job.depth = job.depth or STATED_WIDTH_DEPTH


def width_that_fits(job: Job, device: torch.device) -> int:
    """Return the job's width, halved until the device has the memory for the models it probes.

    An MLP's weights grow with the square of its width, and its first layer with the images.
    """
    memory = quotas.ram_bytes()  # of an Apple GPU too
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    width = job.width
    while width > 1:
        with torch.device("meta"):
            probed = MODELS[job.model](width, PROBED[1], IMAGE_CLASSES, job.image_px)
        weights = sum(each.nbytes for each in probed.parameters())
        if COPIES * weights <= MOST_MEMORY * memory:
            break
        width //= 2
    return width


def fit_speed(job: Job, device: torch.device) -> None:
    """Set the depth at which a step takes about `STEP_MS`, and halve the width if need be."""
    job.depth = kept_depth(job, device)
    for _ in range(HALVINGS):
        if job.depth != TOO_WIDE:
            return
        job.width //= 2
        job.depth = kept_depth(job, device)
    job.depth = max(job.depth, 1)


def kept_depth(job: Job, device: torch.device) -> int:
    """Return the depth at which a step takes about `STEP_MS`: found before, or now and kept.

    A depth that was found while others computed on the card is not kept.
    """
    path = place_of_depth(job, device)
    if (known := text_of(path)).isdigit():
        return int(known)
    depth = find_depth(job, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # what was tried is no part of the run
    if device.type != "cuda" or devices.busy_with_others(device.index or 0) <= DESKTOP:
        keep(path, str(depth))
    return depth


def place_of_depth(job: Job, device: torch.device) -> Path:
    """Return the file in which a depth is kept, named by all that it depends on."""
    facts = [device.type]
    if device.type == "cuda":
        driver = machine.describe(device)["driver"]
        facts = [torch.cuda.get_device_name(device), f"driver {driver}"]
    facts += [f"torch {torch.__version__}", job.model, str(job.width), str(job.image_px)]
    return folders.part("depths") / f"{' '.join(facts).replace('/', ' ')}.txt"


def find_depth(job: Job, device: torch.device) -> int:
    """Return the depth at which a step takes about `STEP_MS`, with the card's clocks up.

    `TOO_WIDE` where one layer takes longer.
    """
    load(device)
    depth = PROBED[0]
    is_too_wide = False
    for _ in range(TRIES):
        few, more = (time_step(job, depth, device) for depth in PROBED)
        a_layer = max((more - few) / (PROBED[1] - PROBED[0]), 1e-3)
        depth = min(max(PROBED[0] + round((STEP_MS - few) / a_layer), 1), DEEPEST)
        took = time_step(job, depth, device)
        whole_layers = max(OFF * STEP_MS, a_layer / 2)  # no depth comes closer than half a layer
        is_too_wide = depth == 1 and took > (1 + OFF) * STEP_MS
        if abs(took - STEP_MS) <= whole_layers and not is_too_wide:
            return depth
    return TOO_WIDE if is_too_wide else depth


def load(device: torch.device) -> None:
    """Keep the device busy until its clocks have risen."""
    square = torch.ones(LOAD_SIDE, LOAD_SIDE, device=device)
    until = now_ns() + int(WARM_S * 1e9)
    while now_ns() < until:
        for _ in range(10):
            square @ square
        devices.finish(device)


def time_step(of: Job, depth: int, device: torch.device) -> float:
    """Return the time of one plain step of a job's model, its batch on the device, ms."""
    job = plain_job(device, model=of.model, width=of.width, depth=depth, image_px=of.image_px)
    trainer = Trainer(job, device)
    images, labels = trainer.to_device(*noise_batch(job))
    took = []
    for _ in range(1 + ROUNDS):
        devices.finish(device)
        start = now_ns()
        for _ in range(STEPS_A_ROUND):
            trainer.compute(images, labels, update=True)
        devices.finish(device)
        took.append((now_ns() - start) / 1e6 / STEPS_A_ROUND)
    return median(took[1:])


def plain_job(device: torch.device, **knobs: object) -> Job:
    """Return a job with every knob at its default, plain FP32 training, but for `knobs`."""
    defaults = {name: knob.default for name, knob in KNOBS.items()}
    job = Job(**defaults | knobs)
    fill(job, device)
    return job
