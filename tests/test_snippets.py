"""Every line that the kit prints runs when it is pasted, and keeps what it does not change.

A user's script is a namespace here; each line is executed in it, as a paste would be.
"""

import dataclasses
import functools
import importlib
import multiprocessing
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labkit as lk
from labkit.bench import resolve_config
from labkit.diagnosis.cause import asked
from labkit.diagnosis.causes import loader
from labkit.diagnosis.causes.launches import compiled, fused_optimizer, larger_batch
from labkit.diagnosis.evidence import Batch, Epochs, Evidence, WorkerEvidence
from labkit.diagnosis.findings import Finding, Remedy
from labkit.diagnosis.loader_code import ARGUMENTS, LoopCode
from labkit.diagnosis.wording import worded
from labkit.results.core_use import CoreUse
from labkit.results.hardware import Machine
from labkit.tuning.set_up import tuner
from labkit.watching.loader_call import call_of

forks = pytest.mark.skipif(
    multiprocessing.get_start_method() != "fork", reason="workers started anew lack the script"
)
SCRIPT = """
import torch
from torch.utils.data import (
    BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(64.0))

def pad_together(items):
    return torch.stack([item[0] for item in items]), "together"

def seed_worker(number):
    torch.manual_seed(number)

data = TensorDataset(torch.arange(64.0))
stream = Stream()
order = torch.Generator().manual_seed(7)
batches_of_4 = BatchSampler(SequentialSampler(data), 4, drop_last=True)
net = torch.nn.Linear(4, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOADERS = [
    "DataLoader(data)",
    "DataLoader(data, 8, shuffle=True, generator=order, drop_last=True)",
    "DataLoader(data, 8, sampler=RandomSampler(data, replacement=True))",
    "DataLoader(data, 8, sampler=RandomSampler(data, num_samples=16))",
    "DataLoader(data, batch_sampler=batches_of_4)",
    "DataLoader(data, batch_size=None, sampler=batches_of_4)",
    "DataLoader(data, 8, collate_fn=pad_together)",
    "DataLoader(data, 8, collate_fn=lambda items: (len(items), 'inline'))",
    "DataLoader(data, 8, num_workers=1, worker_init_fn=seed_worker, timeout=60, in_order=False,"
    " multiprocessing_context='fork', prefetch_factor=3, persistent_workers=True, pin_memory=True)",
    "DataLoader(stream, batch_size=8)",
    "torch.utils.data.DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True)",
]
PLAIN = LoopCode(loader="loader", call="DataLoader", arguments={"dataset": "data"})
RESTARTED = Epochs(0.4, 900.0)
CHANGES = [
    {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
    {"prefetch_factor": 4, "num_workers": 1},
    {"persistent_workers": True, "num_workers": 1},
    {"pin_memory": True, "non_blocking": True},
]


def user_script(loader):
    """Return the namespace of a user's script, its loader in `train_loader`."""
    names = {"__name__": "train"}
    exec(SCRIPT, names)
    exec(f"train_loader = {loader}", names)
    return names


def in_script(names, code, **more):
    """Return the value of an expression of the user's script; `more` is what it also knows."""
    names |= more
    exec(compile(f"result = {code}", "train.py", "exec"), names)
    return names.pop("result")


def described(loader):
    """Return what makes two loaders alike: their arguments, and of samplers the kind."""
    sampler = loader.sampler
    draws = [getattr(sampler, name, None) for name in ("replacement", "num_samples")]
    return {name: getattr(loader, name, None) for name in ARGUMENTS} | {
        "class": type(loader),
        "sampler": (type(sampler), *draws),
        "batch_sampler": type(loader.batch_sampler),
    }


def code_of(names):
    """Return what is known of the script around its `train_loader`."""
    return LoopCode.of(in_script(names, "call_of(train_loader)", call_of=call_of))


@forks
@pytest.mark.parametrize("made", LOADERS)
def test_what_a_user_is_told_to_type_keeps_every_argument_that_does_not_change(made, monkeypatch):
    monkeypatch.setenv("LABKIT_WARM", "0")
    monkeypatch.setattr("labkit.tuning.set_up.machine", Machine)
    names = user_script(made)
    code = code_of(names)
    before = described(names["train_loader"])
    for changes in CHANGES:
        line = code.lines(changes)
        pasted = dict(names)
        exec(line, pasted)
        wanted = before | {name: value for name, value in changes.items() if name in before}
        if not wanted["num_workers"]:
            wanted |= {"prefetch_factor": None, "persistent_workers": False}
            wanted |= {"multiprocessing_context": None, "timeout": 0}
        elif wanted["prefetch_factor"] is None:
            wanted["prefetch_factor"] = 2
        assert described(pasted["train_loader"]) == wanted, line
    if before["batch_size"] is not None:  # else its dataset is what is tuned
        tuning = in_script(names, "tuner(train_loader, seconds=1)", tuner=tuner).found
        exec(tuning.snippet, names)
        assert described(names["train_loader"]) == before | tuning.best


# Scripts that name torch's things otherwise, or not at all; each has its loader in `made`
SCRIPTS = {
    "no torch": "from labkit_user import DataLoader, data, net, sgd\nmade = DataLoader(data, 8)",
    "no loader class": "from labkit_user import data, net, sgd, make\nmade = make(data)",
    "another name": "from torch.utils import data as d\nfrom labkit_user import data, net, sgd\n"
    "made = d.DataLoader(data, 8)",
    "own class": "from labkit_user import Loader, data, net, sgd\nmade = Loader(data, 8)",
    "inline data": "from labkit_user import DataLoader, list_of, net, sgd\n"
    "made = DataLoader(list_of(64), 8, collate_fn=lambda items: items)",
    "no model": "from labkit_user import DataLoader, data\nmade = DataLoader(data, 8)",
}
STEP_CHANGES = [
    {"compile": "default"},
    {"precision": "bf16", "fused_optimizer": True},
]


class Loader(DataLoader):
    pass


@pytest.fixture
def user_module(monkeypatch):
    module = ModuleType("labkit_user")
    net = nn.Linear(4, 2)
    module.__dict__.update(
        Loader=Loader, DataLoader=DataLoader, data=TensorDataset(torch.arange(64.0)), net=net,
        sgd=torch.optim.SGD(net.parameters(), lr=0.1), list_of=lambda n: list(range(n)),
        make=lambda data: DataLoader(data, 8),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "labkit_user", module)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    yield module
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_is_printed_runs_in_a_script_with_other_names_or_none(kind, user_module, monkeypatch):
    monkeypatch.setenv("LABKIT_WARM", "0")
    monkeypatch.setattr("labkit.tuning.set_up.machine", Machine)
    names = {"__name__": "train"}
    exec(SCRIPTS[kind], names)
    code = LoopCode.of(in_script(names, "call_of(made)", call_of=call_of))
    lines = [fed(code=code, epochs=RESTARTED, knobs={"num_workers": 2}).code]
    lines += [fed(code=code, advised=4).code]
    lines += [code.lines(changes) for changes in CHANGES + STEP_CHANGES]
    lines += [in_script(names, "tuner(made, seconds=1)", tuner=tuner).found.snippet]
    for line in lines:
        exec(compile(line, "pasted", "exec"), dict(names))
    assert any("prefetch_factor=4" in line and "\nmade = " in f"\n{line}" for line in lines)


@pytest.mark.parametrize("what", ["TensorDataset(torch.zeros(64))", "'labkit_user:data'"])
def test_what_has_no_name_in_the_script_is_told_as_an_example(what, user_module, monkeypatch):
    monkeypatch.setattr("labkit.tuning.set_up.machine", Machine)
    names = user_script("None")
    found = in_script(names, f"tuner({what}, seconds=1)", tuner=tuner).found
    assert found.snippet.startswith("# loader = DataLoader(dataset, batch_size=32")
    exec(found.snippet, {})


REMEDIES = {
    (name, remedy.key): remedy
    for name in ("body", "compute", "copies", "host", "launches", "loader", "workers")
    for remedy in vars(importlib.import_module(f"labkit.diagnosis.causes.{name}")).values()
    if isinstance(remedy, Remedy) and (remedy.code or remedy.make)
}


@pytest.mark.parametrize("remedy", REMEDIES.values(), ids=lambda remedy: remedy.key)
def test_the_code_of_a_remedy_runs_in_a_script_that_has_none_of_its_names(remedy, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(torch, "set_num_threads", int)
    exec(remedy.to_dict()["code"], {})


def fed(**known):
    """Return what is found of a loop that waits half of the time for a loader without workers."""
    known = {"wait_share": 0.5, "compute_share": 0.5, "knobs": {"num_workers": 0}} | known
    evidence = Evidence("cpu", **known)
    return worded(asked(loader.waiting_for_data, evidence), evidence)


def test_the_model_is_looked_for_by_the_usual_names():
    head = nn.Linear(4, 4)

    def told(net=None, student=None, self=None, model=None):
        return call_of(DataLoader(range(4)))["model"]

    assert told(torch.compile(head, backend="eager"), student=head) == "net"
    assert told(self=SimpleNamespace(net=head)) == "self.net"
    assert told(student=head, model="resnet50") is None


def test_the_advice_for_a_watched_loop_is_in_the_names_of_its_script():
    names = user_script("DataLoader(data, 8, shuffle=True, collate_fn=pad_together)")
    watched = "list(seen := watch(train_loader, live=False)) and seen.run.loop_code"
    code = LoopCode.of(in_script(names, watched, watch=lk.watch))
    assert fed(code=code, advised=4).code == (
        "train_loader = DataLoader(\n"
        "    data, batch_size=8, shuffle=True, num_workers=4, collate_fn=pad_together\n"
        ")\n"
    )


def test_workers_of_a_loop_with_short_passes_are_kept():
    short = SimpleNamespace(passes=3, lines=None)
    evidence = Evidence("cpu", knobs={"num_workers": 0}, use=CoreUse(2), loop=short)
    kept = loader.set_num_workers.for_run(evidence)
    assert kept.changes == {"num_workers": 2, "persistent_workers": True}


def in_trainer(**asked):
    """Return the evidence of a loop in a Trainer with these arguments."""
    file = "/x/site-packages/transformers/trainer.py"
    names = {"__name__": "transformers.trainer"}
    exec(compile("def train(self, call, loader): return call(loader)", file, "exec"), names)
    trainer = SimpleNamespace(args=SimpleNamespace(**asked))
    found = names["train"](trainer, call_of, DataLoader([1, 2]))
    return Evidence("gpu", code=LoopCode.of(found, trainer=True), knobs={"batch_size": 16})


@pytest.mark.parametrize("cards", [1, 2])
def test_a_model_on_several_cards_is_not_compiled_and_its_batch_is_that_of_all(cards):
    model = nn.DataParallel(nn.Linear(4, 4))
    model.device_ids = list(range(cards))
    loop = Evidence("gpu", code=LoopCode.of(call_of(DataLoader(range(4)))))
    trainer = in_trainer(n_gpu=cards)
    for evidence in (loop, trainer):
        assert bool(compiled.for_run(evidence)) == (cards == 1)
    told = worded(Finding("launch", "gaps_between_kernels", 0.5, (), (larger_batch,)), trainer)
    assert "batch of 64" in told.advice  # of all cards, the argument is that of one
    assert f"per_device_train_batch_size={64 // cards})" in told.code


@pytest.mark.parametrize(
    "remedy, argument, used",
    [
        (compiled, "torch_compile=True", {"is_compiled": True}),
        (fused_optimizer, "optim='adamw_torch_fused'", {"may_fuse": False}),
    ],
)
def test_what_a_trainer_has_switched_on_is_not_advised(remedy, argument, used):
    code = LoopCode(trainer=True, may_fuse=True)
    told = remedy.for_run(Evidence("gpu", code=code))
    assert code.lines(told.changes) == f"# TrainingArguments(..., {argument})\n"
    assert remedy.for_run(Evidence("gpu", code=dataclasses.replace(code, **used))) is None


@pytest.mark.parametrize(
    "batches, sizes, mode",
    [(1, 2, "reduce-overhead"), (2, 2, "default"), (1, 40, "default")],
)
def test_cuda_graphs_are_told_only_where_each_batch_is_an_update_and_few_sizes_are_met(
    batches, sizes, mode
):
    evidence = Evidence("gpu", batches_an_update=batches, batch=Batch(sizes=sizes))
    assert compiled.for_run(evidence).changes == {"compile": mode}


def test_nor_does_a_bench_record_them_where_gradients_accumulate():
    asked = lk.Pipeline(compile="reduce-overhead", accumulation_steps=8).to_dict()
    cuda = torch.device("cuda")
    job, dropped = resolve_config.resolve_config(asked, cuda, size_model=False, here=False)
    assert job.compile == "default" and "overwrites gradients" in dropped["compile"]


def test_a_knob_of_the_step_that_is_switched_off_needs_no_line():
    off = {"non_blocking": False, "compile": None}
    assert PLAIN.lines({"num_workers": 0} | off) == "loader = DataLoader(data, num_workers=0)\n"
    unnamed = dataclasses.replace(PLAIN, arguments={"dataset": "loader.dataset"})
    assert unnamed.lines({"num_workers": 2}).startswith("# below the line that makes loader now\n")
    graphs = PLAIN.lines({"compile": "reduce-overhead"})
    assert graphs.startswith("# model = torch.compile(model, mode='reduce-overhead'); save")


def test_no_line_to_paste_drops_an_argument_or_names_what_is_not_there():
    inline = "call_of(DataLoader(data, 8, collate_fn=lambda items: items))"
    code = LoopCode.of(in_script(user_script("None"), inline, call_of=call_of))
    told = code.lines({"num_workers": 4})
    assert told.startswith("# loader = ") and "collate_fn=collate_fn" in told  # it has no name
    of_batches = code_of(user_script("DataLoader(data, batch_sampler=batches_of_4)"))
    assert of_batches.lines({"batch_size": 8}) == ""
    for unknown in (None, {"arguments": 3}, {"arguments": {"x": "y"}}, {"loader": [1]}):
        assert LoopCode.of(unknown).lines({"num_workers": 4}) == ""


def test_a_trainers_user_is_given_a_line_that_changes_their_training_arguments():
    code = LoopCode(trainer=True)
    finding = fed(use=CoreUse(2), code=code)
    assert finding.code == "# TrainingArguments(..., dataloader_num_workers=2)\n"
    assert "(..., bf16=True)" in code.lines({"precision": "bf16"})


# A loop over features, which are no images, with every name that an example has
FEATURES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cpu")
dataset = TensorDataset(torch.randn(64, 20), torch.arange(64) % 2)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, labels = next(iter(loader))
inputs = batch = images
"""
OF_LOADERS = [remedy for (name, _), remedy in REMEDIES.items() if name in ("loader", "workers")]
COPIES = [remedy for (name, _), remedy in REMEDIES.items() if name == "copies"]


@pytest.mark.parametrize("remedy", OF_LOADERS + COPIES, ids=lambda remedy: remedy.key)
def test_pasted_code_runs_in_a_watched_script_and_leaves_a_batch_of_no_images_as_it_is(
    remedy, monkeypatch
):
    monkeypatch.setattr(os, "environ", {})
    code = LoopCode.of(
        {
            "loader": "loader",
            "call": "DataLoader",
            "arguments": {"dataset": "dataset", "batch_size": "8", "shuffle": "True"},
            "dataset_type": "TensorDataset",
        }
    )
    workers = WorkerEvidence((0.9, 0.9), idle_share=0.7)
    shape = Batch("float32", bytes=4e7)
    evidence = Evidence("gpu", workers=workers, batch=shape, code=code, wait_share=0.5)
    filled = remedy.for_run(dataclasses.replace(evidence, knobs={"num_workers": 2}))
    if filled is None:
        pytest.skip("not for such a loop")
    told = worded(Finding("input", "item", 0.5, (), (filled,)), evidence).code
    script = {"__name__": "train"}
    exec(FEATURES, script)
    before = script["images"].clone()
    exec(told, script)  # as it is printed
    example = "\n".join(line.removeprefix("# ") for line in told.splitlines())
    names = "images =", "inputs =", "batch ="
    if any(name in example for name in names):  # and as somebody takes it out of its comments
        lines = [line for line in example.splitlines() if line.startswith(("if ", " ", *names))]
        exec("\n".join(lines), script)
    assert torch.equal(script["images"], before) and script["images"].dtype == torch.float32
    list(script["loader"])
