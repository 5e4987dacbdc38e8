"""The plain PyTorch that a pipeline stands for: a whole script, or the lines that knobs change.

`BLOCKS` are the script with every knob in it. A line that ends in `#if a !b` stays where a is so
and b is not; `<name>` is filled in. Models and images are the bench's own, read from its source.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from pathlib import Path
from typing import Any

from labkit.spec import GRAPH_MODES, KNOBS

BENCH = Path(__file__).parents[1] / "bench"
WIDTH, INDENT = 100, 4  # columns: of a line at most, and before the statements of main()
PYTORCH_PREFETCH = 2  # its default
DATASETS = {  # {name: what its Images are made of, as code}
    "jpeg": "image_files(2 * PX)",
    "array": "decoded(image_files(2 * PX))",
    "sleep": "noise()",
}
MODELS = {"cnn": "CNN", "mlp": "MLP", "transformer": "Transformer"}  # classes of bench/models.py
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
IMPORTS = (  # (module, its names); what a script does not use is left out
    ("", "os random tempfile time"), ("pathlib", "Path"),
    ("", "numpy torch"), ("PIL", "Image ImageEnhance ImageOps"), ("torch", "nn"),
    ("torch.utils.data", "DataLoader Dataset default_collate get_worker_info"),
)  # fmt: skip
ALIAS = {"numpy": "np"}
UNUSED = ", _image_px: int"  # of a model's arguments
LOADER = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")

CONSTANTS = """
COUNT, CLASSES = <count>, <classes>  # of the images
PX = <image_px>  # edge of the model's images
AUGMENT = <augment>  # rounds of crop, flip and colour change per image  #if jpeg augment
PREP_MS = <prep_ms>  # simulated delay: stands in for preparing a batch  #if sleep
IO_MS = <io_ms>  # simulated delay per item, as of a network drive  #if io_ms
STALL_MS, STALL_EVERY = <stall_ms>, <stall_every>  # simulated delay in one of so many #if stall_ms
SEED = <seed>
"""
FILES = '''
def image_files(px: int) -> list[Path]:
    """Return JPEG files of `px` by `px` pixels, drawn once: put your own here."""
    folder = Path(tempfile.gettempdir(), f"gratings-{px}px")
    folder.mkdir(exist_ok=True)
    files = [folder / f"{index:05d}.jpg" for index in range(COUNT)]
    for index, file in enumerate(files):
        if not file.exists():
            part = file.with_suffix(f".{os.getpid()}")
            Image.fromarray(draw_image(index, px)).save(part, "JPEG", quality=90)
            part.replace(file)
    return files
'''
DECODED = '''
def decoded(files: list[Path]) -> np.ndarray:
    """Return the images of all files: (COUNT, 3, PX, PX) uint8."""
    images = (np.asarray(Image.open(file).resize((PX, PX))) for file in files)
    return np.stack([image.transpose(2, 0, 1) for image in images])
'''
NOISE = '''
def noise() -> np.ndarray:
    """Return 64 images of random pixels: (64, 3, PX, PX) uint8."""
    return np.random.default_rng(SEED).integers(0, 256, (64, 3, PX, PX), dtype=np.uint8)
'''
JPEG = '''
class Images(Dataset):
    """Image files and their labels: (3, PX, PX) uint8, and an int."""

    def __init__(self, files: list[Path]):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  #if !augment
    def __getitem__(self, key: tuple[int, int]) -> tuple[torch.Tensor, int]:  #if augment
        number, index = key  # the number seeds the augmentation  #if augment
        time.sleep(IO_MS / 1e3)  #if io_ms
        image = Image.open(self.files[index]).convert("RGB")
        rng = random.Random(SEED * 1_000_003 + number)  #if augment
        for _ in range(AUGMENT):  #if augment
            image = augmented(image, rng)  #if augment
        pixels = np.array(image.resize((PX, PX)))  # (PX, PX, 3)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), index % CLASSES
'''
ARRAY = '''
class Images(Dataset):
    """Images in memory, given out by batches: (B, 3, PX, PX) uint8, and labels (B,)."""

    def __init__(self, images: np.ndarray):
        self.images = images

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(PREP_MS / 1e3)  #if sleep !io_ms
        time.sleep(PREP_MS / 1e3 + IO_MS / 1e3 * len(indices))  #if sleep io_ms
        time.sleep(IO_MS / 1e3 * len(indices))  #if !sleep io_ms
        rows = np.array(indices) % len(self.images)
        return torch.from_numpy(self.images[rows]), torch.from_numpy(rows % CLASSES)


def as_it_is(batch: tuple) -> tuple:
    """Hand on a batch that is whole already."""
    return batch
'''
STALL = '''
class SlowDisk:
    """Collates batches, and sleeps before one in STALL_EVERY: a simulated slow-disk stall."""

    def __init__(self):
        self.seen = 0

    def __call__(self, samples):
        worker = get_worker_info()
        batch = self.seen * <some_workers> + (worker.id if worker else 0)
        self.seen += 1
        if batch % STALL_EVERY == STALL_EVERY - 1:
            time.sleep(STALL_MS / 1e3)
        return default_collate(samples)  #if jpeg
        return as_it_is(samples)  #if !jpeg
'''
SHUFFLED = '''
def shuffled():
    """Yield the indices of all images in random order, epoch after epoch without end."""
    rng = random.Random(SEED)
    while True:
        yield from rng.sample(range(COUNT), COUNT)
'''
MAIN = """
def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(<threads>)  # the other cores are the loader's  #if threads
    device = torch.device("<device>")
    torch.cuda.set_device(device)  #if other_card
    torch.set_float32_matmul_precision("high")  # TF32  #if tf32
    torch.backends.cudnn.allow_tf32 = False  # else FP32 convolutions use TF32  #if plain_convs
    dataset = Images(<images>)  #if known
    loader = <loader>
    with device:  # the weights are made where they are needed
        model = <model_call>
    model = model.to(memory_format=torch.channels_last)  #if channels_last
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  #if !fused_optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  #if fused_optimizer
    model = torch.compile(model)  #if compile !mode
    model = torch.compile(model, mode="<compile>")  #if mode
    scaler = torch.amp.GradScaler(device.type)  #if fp16
    copies = torch.cuda.Stream()  #if prefetch_to_device
    losses, start = [], time.perf_counter()
    begun = start
    for step, (images, labels) in enumerate(loader, 1):
        images, labels = images.to(device), labels.to(device)  #if !own_copy
        images = images.to(device, non_blocking=True)  #if non_blocking !prefetch_to_device
        labels = labels.to(device, non_blocking=True)  #if non_blocking !prefetch_to_device
        with torch.cuda.stream(copies):  # under the compute before  #if prefetch_to_device
            images = images.to(device<overlap>)  #if prefetch_to_device
            labels = labels.to(device<overlap>)  #if prefetch_to_device
        torch.cuda.current_stream().wait_stream(copies)  #if prefetch_to_device
        images.record_stream(torch.cuda.current_stream())  #if prefetch_to_device
        labels.record_stream(torch.cuda.current_stream())  #if prefetch_to_device
        images = images.to(memory_format=torch.channels_last)  #if channels_last
        images = images.float().div_(255)  # on the device: uint8 has a quarter of the bytes
        with torch.autocast(device.type, dtype=torch.<dtype>):  #if dtype
            loss = nn.functional.cross_entropy(model(images), labels)  #if dtype
        loss = nn.functional.cross_entropy(model(images), labels)  #if !dtype
        loss.backward()  #if !fp16 !parts
        (loss / <parts>).backward()  #if !fp16 parts
        scaler.scale(loss).backward()  #if fp16 !parts
        scaler.scale(loss / <parts>).backward()  #if fp16 parts
        if step % <parts> == 0:  #if parts
            optimizer.step()  #if parts !fp16
            scaler.step(optimizer)  #if parts fp16
            scaler.update()  #if parts fp16
            optimizer.zero_grad()  #if parts
        optimizer.step()  #if !parts !fp16
        scaler.step(optimizer)  #if !parts fp16
        scaler.update()  #if !parts fp16
        optimizer.zero_grad()  #if !parts
        losses.append(loss.detach())  #if !graphs
        losses.append(loss.detach().clone())  # a graph's next replay overwrites it  #if graphs
        if step == 1:  # compiled: warm from here on  #if compile seconds
            start = time.perf_counter()  #if compile seconds
        if step == <warmup>:  # warmed up
            torch.accelerator.synchronize()  #if gpu
            begun = time.perf_counter()
        if step == <steps>:  #if !seconds
        if step == <steps> or time.perf_counter() - start > <seconds>:  #if seconds
            torch.accelerator.synchronize()  #if gpu
            took = time.perf_counter() - begun
            break
    print("losses:", *torch.stack(losses).tolist())
    if step > <warmup>:
        print(f"{len(labels) * (step - <warmup>) / took:,.0f} samples/s after the warm-up")


if __name__ == "__main__":
    main()
"""
BLOCKS = (  # (where it is needed, the code)
    ("", CONSTANTS), ("!sleep", "<draw_image>"), ("!sleep", FILES), ("array", DECODED),
    ("sleep", NOISE), ("jpeg augment", "<augmented>"), ("jpeg", JPEG), ("!jpeg", ARRAY),
    ("stall_ms", STALL), ("", SHUFFLED), ("", "<model_source>"), ("", MAIN),
)  # fmt: skip


def whole_script(job: dict[str, Any], threads: int | None, title: str = "") -> str:
    """Return the script of a `job`: every knob with the value that runs; `threads` on a CPU.

    Raises ValueError, with the knob's name, for what cannot be written.
    """
    for name, known in (("dataset", DATASETS), ("model", MODELS)):
        if job[name] not in known:
            can = ", ".join(map(repr, known))
            raise ValueError(f"{name}={job[name]!r} cannot be written as a script yet; {can} can.")
    for name in ("width", "depth"):
        if job[name] is None:
            raise ValueError(
                f"{name}=None is chosen by timing the device that the script is for: state width "
                "and depth, or give lk.script a Run that was measured on it."
            )
    body = _written(job, threads)
    return f'"""{title}"""\n\n{_imports(body)}\n\n{body}'


def changed_lines(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the statements of `after` that those of `before` lack or have otherwise; "" if none.

    Both are {knob: value}; a knob that is left out has its default. Without a `dataset` it is the
    reader's own: `DataLoader(dataset, ...)`.
    """
    plain = {name: knob.default for name, knob in KNOBS.items()} | {"dataset": None}
    old, new = (_statements(_written(plain | knobs, None)) for knobs in (before, after))
    return "".join(f"{text}\n" for text in new if text not in old)


def loader_call(knobs: dict[str, Any], dataset: str = "dataset", **more: str) -> str:
    """Return the call of a DataLoader with these settings; `more` are other arguments, as code."""
    values = {name: knobs.get(name) for name in LOADER}
    if values["prefetch_factor"] == PYTORCH_PREFETCH:
        values["prefetch_factor"] = None
    shown = {n: repr(v) for n, v in values.items() if n == "num_workers" or v not in (None, False)}
    arguments = [dataset, *(f"{name}={value}" for name, value in (more | shown).items())]
    line, one = f"DataLoader({', '.join(arguments)})", f"    {', '.join(arguments)}\n"
    if len(line) <= WIDTH - INDENT - len("loader = "):
        return line
    each = "".join(f"    {argument},\n" for argument in arguments)
    return f"DataLoader(\n{one if len(one) <= WIDTH - INDENT else each})"


def _written(job: dict[str, Any], threads: int | None) -> str:
    """Return all of the script but its title and imports."""
    dataset, model, precision, parts = (
        job[name] for name in ("dataset", "model", "precision", "accumulation_steps")
    )
    cuda = str(job["device"]).startswith("cuda")
    workers, overlap = job["num_workers"], ", non_blocking=True" if job["non_blocking"] else ""
    numbered = dataset == "jpeg" and job["augment"]  # a sample's number seeds its augmentation
    given = {"sampler": "enumerate(shuffled())" if numbered else "shuffled()"} if dataset else {}
    if dataset and (job["stall_ms"] or dataset != "jpeg"):
        given["collate_fn"] = "SlowDisk()" if job["stall_ms"] else "as_it_is"
    lifted = {name: _lifted("data", name) for name in ("draw_image", "augmented")}
    lifted["model_source"] = _lifted("models", MODELS.get(model, "")).replace(UNUSED, "")
    sizes = [f"{name}={job[name] or '...'}" for name in ("width", "depth")]
    sizes += ["classes=CLASSES"] + ["image_px=PX"] * ("image_px" in lifted["model_source"])
    known = {
        **job, **lifted, "count": _constant("COUNT"), "classes": _constant("CLASSES"),
        **{name: dataset == name for name in DATASETS}, "known": dataset in DATASETS,
        **{name: precision == name for name in ("tf32", "fp16")},
        "threads": threads,
        "other_card": cuda and job["device"] not in ("cuda", "cuda:0"),
        "plain_convs": cuda and precision == "fp32" and model != "mlp",
        "gpu": job["device"] not in ("cpu", "auto"), "dtype": DTYPES.get(precision),
        "images": DATASETS.get(dataset), "loader": loader_call(job, **given),
        "model_call": f"{MODELS.get(model, model)}({', '.join(sizes)})",
        "mode": job["compile"] not in (None, "default"), "graphs": job["compile"] in GRAPH_MODES,
        "overlap": overlap, "own_copy": overlap or job["prefetch_to_device"],
        "parts": parts if parts > 1 else None, "some_workers": max(1, workers),
        "warmup": max(3, workers * (job["prefetch_factor"] or PYTORCH_PREFETCH)),
    }  # fmt: skip
    blocks = (_filled(text, known) for needed, text in BLOCKS if _holds(needed, known))
    return "\n\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _filled(text: str, known: dict[str, Any]) -> str:
    """Return a block with the lines that stay, filled in."""
    lines = []
    for line in text.strip("\n").split("\n"):
        line, _, needed = line.partition("#if ")
        if _holds(needed, known):
            indent = "\n" + " " * (len(line) - len(line.lstrip()))
            values = (_as_code(known.get(name)) for name in re.findall(r"<(\w+)>", line))
            parts = re.split(r"<\w+>", line.rstrip())
            filled = (v.replace("\n", indent) + p for v, p in zip(values, parts[1:], strict=True))
            lines.append(parts[0] + "".join(filled))
    return re.sub(r"\n +(?=\n)", "\n", "\n".join(lines))


def _as_code(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _holds(needed: str, known: dict[str, Any]) -> bool:
    return all(bool(known[name.lstrip("!")]) != name.startswith("!") for name in needed.split())


@functools.cache
def _bench(module: str) -> tuple[str, dict[str, ast.stmt]]:
    """Return the text of a module of the bench, and what it defines, by name."""
    text = (BENCH / f"{module}.py").read_text(encoding="utf-8")
    defined = {}
    for node in ast.parse(text).body:
        names = node.targets if isinstance(node, ast.Assign) else [node]
        defined |= {getattr(n, "name", getattr(n, "id", "")): node for n in names}
    return text, defined


def _constant(name: str) -> int:
    return ast.literal_eval(_bench("data")[1][name].value)


def _lifted(module: str, name: str) -> str:
    """Return the source of a function or class of the bench; "" where it has none of the name."""
    text, defined = _bench(module)
    source = ast.get_source_segment(text, defined[name]) if name in defined else ""
    return source.replace("VERSION", str(_constant("VERSION")))


def _statements(body: str) -> list[str]:
    """Return what a script sets up, and what its loop does, statement by statement."""
    lines, tree = body.split("\n"), ast.parse(body).body
    main = next(node for node in tree if getattr(node, "name", "") == "main").body
    at = next(place for place, node in enumerate(main) if isinstance(node, ast.For))
    found = [node for node in tree if isinstance(node, ast.Assign)] + main[:at] + main[at].body
    texts = ("\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in found)
    return [textwrap.dedent(text) for text in texts if "warm" not in text]  # that only measures


def _imports(body: str) -> str:
    """Return the imports of a script: of each module, the names that it uses."""
    lines = []
    for module, names in IMPORTS:
        used = [name for name in names.split() if re.search(rf"\b{ALIAS.get(name, name)}\b", body)]
        if "numpy" in names:
            lines.append("")  # what Python has itself stands above
        if module and used:
            lines.append(f"from {module} import {', '.join(used)}")
        elif not module:
            alias = (f" as {ALIAS[name]}" if name in ALIAS else "" for name in used)
            lines += [f"import {name}{more}" for name, more in zip(used, alias, strict=True)]
    return "\n".join(lines)
