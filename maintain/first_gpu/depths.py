"""How firmly a model's depth is found, a JSON line for each try; `--quick` needs no card.

The depth of each model is found anew three times, and a step at it timed again.
"""

from __future__ import annotations

import json
import sys

import labkit as lk
from labkit import quotas
from labkit.bench import devices, model_size, resources
from labkit.spec import automatic

QUICK = "--quick" in sys.argv[1:]
TIMES = 1 if QUICK else 3
MODELS = ("cnn",) if QUICK else ("cnn", "mlp", "transformer")

resources.use_fixed_threads()
device = devices.find_device("auto")
devices.use(device)
knobs = {name: knob.default for name, knob in lk.Pipeline.knobs.items()}
for model in MODELS:
    asked = automatic(knobs | {"model": model}, device.type != "cpu", quotas.cpu_cores().count)
    job = model_size.plain_job(device, model=model, depth=1, image_px=asked["image_px"])
    for _ in range(TIMES):
        depth = model_size.find_depth(job, device)
        again_ms = model_size.time_step(job, max(depth, 1), device)  # 0: too wide
        found = {"model": model, "width": job.width, "depth": depth, "step_ms": again_ms}
        print(json.dumps(found, default=str), flush=True)
