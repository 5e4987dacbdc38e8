"""`lk.script(pipeline)`: what a pipeline does, in plain PyTorch: whole, or the lines knobs change.

`script_template.txt` is the script with every knob in it. What stands below `#block a !b`, and a
line that ends in `#if a !b`, stays where a is so and b is not; `<name>` is filled in. Models and
images are the bench's own, read from its source.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from labkit.process import folders
from labkit.results import saving
from labkit.results.hardware import asked_of
from labkit.results.run import Run
from labkit.spec import GRAPH_MODES, KNOBS, Pipeline

CARD = "background:#f8f8f8; color:#222; padding:0.6em; overflow-x:auto; line-height:1.35"
TEMPLATE = Path(__file__).with_name("script_template.txt")
BENCH = Path(__file__).parents[1] / "bench"
WIDTH, INDENT = 100, 4  # columns: of a line at most, and before the statements of main()
PYTORCH_PREFETCH = 2  # its default
DATASETS = {  # {name: what its Images are made of, as code}
    "jpeg": "Images(image_files(2 * PX))",
    "array": "Images(decoded(image_files(2 * PX)))",
    "sleep": "Images(np.random.default_rng(SEED)"
    ".integers(0, 256, (64, 3, PX, PX), dtype=np.uint8))",
    "text": "Text()",
}
# Classes of bench/models.py
MODELS = {"cnn": "CNN", "mlp": "MLP", "transformer": "Transformer", "gpt": "GPT"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
IMPORTS = (  # (module, its names); what a script does not use is left out
    ("", "bisect, itertools, os, random, re, sysconfig, tempfile, time"), ("pathlib", "Path"),
    ("", "numpy as np, torch"), ("PIL", "Image, ImageEnhance, ImageOps"), ("torch", "nn"),
    ("torch.utils.data", "DataLoader, Dataset, default_collate, get_worker_info"),
)  # fmt: skip
UNUSED = ((", _image_px: int", ""),)  # in training, of the models' source
LOADER = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")


class Script(str):
    """Plain PyTorch code: a string that prints as code, here and in a notebook."""

    text = property(str, doc="The code as a plain string.")

    def save(self, path: str | os.PathLike, overwrite: bool = False) -> Path:
        """Write the code to a file, such as "train.py"; return its path.

        A file with other code in it is replaced only with `overwrite`, else FileKept is raised.
        """
        path = Path(path)
        code = self.encode()
        saving.check(path, lambda there: there.read_bytes() == code, overwrite)
        with saving.replacing(path) as file:
            file.write(code)
        return path

    def to_dict(self) -> dict[str, str]:
        """Return {"script": the code}."""
        return {"script": str(self)}

    def __repr__(self) -> str:
        return str(self).rstrip("\n")

    def _repr_html_(self) -> str:
        from pygments import highlight  # it comes with IPython
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        return highlight(self, PythonLexer(), HtmlFormatter(noclasses=True, cssstyles=CARD))


def script(what: Pipeline | Run, *, before: Pipeline | Run | None = None) -> Script:
    """Return a pipeline as a whole training script in plain PyTorch, with nothing of this kit.

    It trains on the same images, and on a CPU to the same losses, bit by bit; what cannot act on
    the device is left out, and so is `xray`. The last lines print losses and throughput.

    Args:
        what: A Pipeline, written for this machine (about 2 s); or a Run, for where it ran.
        before: Return only the statements that differ from this one's, at once; they hold what
            was asked for, whatever this machine can do.

    Raises:
        ValueError: It is neither, or a knob of it cannot be written: the message names it.
    """
    for one in (what, before or what):
        if not isinstance(getattr(one, "asked", one), Pipeline):
            raise ValueError(
                f"lk.script({type(one).__name__}): give a Pipeline, or the Run of one; for a "
                "loader of your own, lk.tune(loader).script() writes its DataLoader."
            )
    asked = getattr(what, "asked", what)
    if before is not None:
        old = getattr(before, "asked", before)
        lines = changed_lines(old.to_dict(), asked.to_dict())
        none = "nothing changed" if old == asked else "these knobs are not in the script"
        return Script(lines or f"# {none}\n")
    if isinstance(what, Run):
        job, left_out = what.pipeline.to_dict(), what.not_applied
        threads = what.machine.threads if what.machine.kind == "cpu" else None
    else:
        job, left_out, threads = _on_this_machine(asked)
    about = f"What {asked!r} does on {job['device']}."
    about += "".join(f" Left out: {name} ({why})." for name, why in left_out.items())
    title = "A training script in plain PyTorch.\n\n"
    return Script(whole_script(job, threads, title + textwrap.fill(about, 99) + "\n"))


@functools.lru_cache(64)
def _on_this_machine(pipeline: Pipeline) -> tuple[dict[str, Any], dict[str, str], int | None]:
    """Return the job that a pipeline is here, what was not applied and why, and a CPU's threads."""
    asked = json.dumps(pipeline.to_dict())
    found = asked_of("labkit.bench.resolve_config", str(folders.home()), asked)
    return found["job"], found["not_applied"], found["threads"]


def whole_script(job: dict[str, Any], threads: int | None, title: str = "") -> str:
    """Return the script of a `job`, every knob with the value that runs; `threads` on a CPU.

    ValueError names the knob that cannot be written.
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
    """Return the statements of `after` that those of `before` lack or have otherwise.

    Both are {knob: value} of a Pipeline, defaults left out.
    """
    old = statements(before)
    return "".join(f"{text}\n" for text in statements(after) if text not in old)


def loader_line(knobs: dict[str, Any]) -> str:
    """Return the statement that makes a pipeline's loader; `knobs` as in `changed_lines`."""
    return next(text for text in statements(knobs) if text.startswith("loader = "))


def loader_call(knobs: dict[str, Any], **more: str) -> str:
    """Return the call of a DataLoader with these settings; `more` are other arguments, as code."""
    values = {name: knobs.get(name) for name in LOADER}
    if values["prefetch_factor"] == PYTORCH_PREFETCH:
        values["prefetch_factor"] = None
    shown = {n: repr(v) for n, v in values.items() if n == "num_workers" or v not in (None, False)}
    code = {"batch_size": shown.pop("batch_size"), **more, **shown}
    arguments = ["dataset", *(f"{name}={value}" for name, value in code.items())]
    return call_lines("DataLoader", arguments, len("loader"))


def call_lines(call: str, arguments: list[str], name: int) -> str:
    """Return `call(arguments)`, wrapped where it is too long behind a name of so many letters."""
    line = f"{call}({', '.join(arguments)})"
    if len(line) <= WIDTH - INDENT - len(" = ") - name:
        return line
    one = f"    {', '.join(arguments)}\n"
    each = "".join(f"    {argument},\n" for argument in arguments)
    return f"{call}(\n{one if len(one) <= WIDTH - INDENT else each})"


def _written(job: dict[str, Any], threads: int | None) -> str:
    """Return all of the script but its title and imports."""
    dataset, model, precision, parts = (
        job[name] for name in ("dataset", "model", "precision", "accumulation_steps")
    )
    cuda = str(job["device"]).startswith("cuda")
    workers, overlap = job["num_workers"], ", non_blocking=True" if job["non_blocking"] else ""
    text, packed = dataset == "text", dataset == "text" and job["batching"] == "packed"
    in_order = text and job["batching"] != "padded"  # batches of a length, or packed rows
    given = {"shuffle": "True"}
    if in_order:
        given = {"sampler": f"ordered(dataset.documents, batch_size={job['batch_size']})"}
    steps = job["steps"]
    several = isinstance(steps, int) and steps * job["batch_size"] > _constant("EPOCH")
    epochs = (text or several) and not in_order  # whose sampler never ends
    collate = {"jpeg": "default_collate", "text": "padded"}.get(dataset, "as_it_is")
    if job["stall_ms"] or dataset != "jpeg":
        given["collate_fn"] = "SlowDisk()" if job["stall_ms"] else collate
    lifted = {name: _lifted("data", name) for name in ("draw_image", "augmented")}
    lifted |= {name: _lifted("text", name) for name in ("paragraphs", "next_bytes")}
    lifted |= {"pack": _lifted("text", "packed"), "model_source": _model(MODELS.get(model, ""))}
    sizes = [f"{name}={job[name] or '...'}" for name in ("width", "depth")]
    if model == "gpt":
        sizes += [f"vocabulary={_constant('VOCABULARY')}", "context=CONTEXT"]
        sizes += ["packed=True"] if packed else []
    else:
        sizes += ["classes=CLASSES"] + ["image_px=PX"] * ("image_px" in lifted["model_source"])
    known = {
        **job, **lifted, "count": _constant("COUNT"), "classes": _constant("CLASSES"),
        "epoch": _constant("EPOCH"), "epochs": epochs, "batches": "batches" if epochs else "loader",
        **{name: dataset == name for name in DATASETS}, "threads": threads, "collate": collate,
        **{name: precision == name for name in ("tf32", "fp16")},
        "other_card": cuda and job["device"] not in ("cuda", "cuda:0"),
        "plain_convs": cuda and precision == "fp32" and model not in ("mlp", "gpt"),
        "files": dataset in ("jpeg", "array"), "in_memory": dataset in ("array", "sleep"),
        "packed": packed, "sorted": in_order,
        "x": "rows" if text else "images", "y": "lengths" if text else "labels",
        "unit": "rows" if packed else "samples",
        "model_and_targets": "model(tokens).flatten(0, 1), targets.flatten()"
        if text else "model(images), labels",
        "gpu": job["device"] not in ("cpu", "auto"), "dtype": DTYPES.get(precision),
        "made_of": DATASETS.get(dataset), "loader": loader_call(job, **given),
        "model_call": f"{MODELS.get(model, model)}({', '.join(sizes)})",
        "mode": job["compile"] not in (None, "default"), "graphs": job["compile"] in GRAPH_MODES,
        "overlap": overlap, "own_copy": overlap or job["prefetch_to_device"],
        "parts": parts if parts > 1 else None, "some_workers": max(1, workers),
        "warmup": max(3, workers * (job["prefetch_factor"] or PYTORCH_PREFETCH)),
    }  # fmt: skip
    blocks = []
    for block in TEMPLATE.read_text(encoding="utf-8").split("#block")[1:]:
        needed, _, text = block.partition("\n")
        blocks += [_filled(text, known)] if _holds(needed, known) else []
    return "\n\n\n".join(blocks) + "\n"


def _filled(text: str, known: dict[str, Any]) -> str:
    """Return a block with the lines that stay, filled in."""
    lines = []
    for line in text.strip("\n").split("\n"):
        line, _, needed = line.partition("#if ")
        if _holds(needed, known):
            indent = "\n" + " " * (len(line) - len(line.lstrip()))
            names = re.findall(r"<(\w+)>", line)
            code = {name: _as_code(known.get(name)).replace("\n", indent) for name in names}
            lines.append(re.sub(r"<(\w+)>", lambda m, code=code: code[m[1]], line.rstrip()))
    return re.sub(r"\n +(?=\n)", "\n", "\n".join(lines))


def _as_code(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


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


@functools.cache
def _lifted(module: str, name: str) -> str:
    """Return the source of a function or class of the bench; "" where it has none of the name."""
    text, defined = _bench(module)
    source = ast.get_source_segment(text, defined[name]) if name in defined else ""
    constant = r"(?<=\[)VERSION\b|\bMOST\b"  # these are written out
    return re.sub(constant, lambda m: ast.get_source_segment(text, defined[m[0]].value), source)


def _model(name: str) -> str:
    """Return the source of a model without what only generating text needs."""
    names = ("Block", name) if name == "GPT" else (name,)
    source = "\n\n\n".join(_lifted("models", each) for each in names)
    for old, new in UNUSED:
        source = source.replace(old, new)
    return re.sub(r"\n *# A token behind a cache.*", "", source)


def statements(knobs: dict[str, Any]) -> list[str]:
    """Return what a pipeline's script sets up, and what its loop does, statement by statement."""
    plain = {name: knob.default for name, knob in KNOBS.items()}
    plain |= {"image_px": "...", "steps": "..."}  # chosen for the device
    told = {name: value for name, value in knobs.items() if value is not None}
    body = _written(plain | told, None)
    lines = body.split("\n")
    tree = ast.parse(body).body
    main = next(node for node in tree if getattr(node, "name", "") == "main").body
    at = next(place for place, node in enumerate(main) if isinstance(node, ast.For))
    found = [node for node in tree if isinstance(node, ast.Assign)] + main[:at] + main[at].body
    texts = ("\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in found)
    return [textwrap.dedent(text) for text in texts if "warm" not in text]  # that only measures


def _imports(body: str) -> str:
    """Return the imports of a script: of each module, the names that it uses."""
    lines = []
    for module, names in IMPORTS:
        after = "" if module else r"\."  # a module is used as `random.x`, and not as `np.random.x`
        pattern = rf"(?<!\.)\b{{}}\b{after}"
        used = [n for n in names.split(", ") if re.search(pattern.format(n.split()[-1]), body)]
        if "numpy" in names:
            lines.append("")  # what Python has itself stands above
        if module and used:
            lines.append(f"from {module} import {', '.join(used)}")
        elif not module:
            lines += [f"import {name}" for name in used]
    return "\n".join(lines)
