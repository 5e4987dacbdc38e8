"""Every line that the kit prints runs when it is pasted, and keeps what it does not change.

A user's script is a namespace here; each line is executed in it, as a paste would be.
"""

import functools
import inspect
import multiprocessing
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labkit as lk
from labkit.diagnosis.causes import loader
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import evaluate
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.wording import with_advice
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

def pad_together(items):
    return torch.stack([item[0] for item in items]), "together"

def seed_worker(number):
    torch.manual_seed(number)

data = TensorDataset(torch.arange(64.0))
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
    "torch.utils.data.DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True)",
]
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
    return {
        name: getattr(loader, name, None) for name in inspect.signature(DataLoader).parameters
    } | {
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
    "another name": "from torch.utils import data as d\nfrom labkit_user import data, net, sgd\n"
    "made = d.DataLoader(data, 8)",
    "inline data": "from labkit_user import DataLoader, list_of, net, sgd\n"
    "made = DataLoader(list_of(64), 8, collate_fn=lambda items: items)",
}


@pytest.fixture
def user_module(monkeypatch):
    module = ModuleType("labkit_user")
    net = nn.Linear(4, 2)
    module.__dict__.update(
        DataLoader=DataLoader, data=TensorDataset(torch.arange(64.0)), net=net,
        sgd=torch.optim.SGD(net.parameters(), lr=0.1), list_of=lambda n: list(range(n)),
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
    lines = [fed(code=code, epoch_starts=0.4, knobs={"num_workers": 2}).code]
    lines += [fed(code=code, advised=4).code]
    lines += [code.lines(changes) for changes in CHANGES]
    lines += [in_script(names, "tuner(made, seconds=1)", tuner=tuner).found.snippet]
    for line in lines:
        exec(compile(line, "pasted", "exec"), dict(names))
    assert any("prefetch_factor=4" in line and "\nmade = " in f"\n{line}" for line in lines)


@pytest.mark.parametrize("what", ["TensorDataset(torch.zeros(64))", "'labkit_user:data'"])
def test_what_has_no_name_in_the_script_is_told_as_an_example(what, user_module, monkeypatch):
    monkeypatch.setattr("labkit.tuning.set_up.machine", Machine)
    names = user_script("None")
    found = in_script(names, f"tuner({what}, seconds=1)", tuner=tuner).found
    assert found.snippet.startswith("# loader = DataLoader(dataset, ")
    exec(found.snippet, {})


def fed(**known):
    """Return what is found of a loop that waits half of the time for a loader without workers."""
    known = {"wait_share": 0.5, "compute_share": 0.5, "knobs": {"num_workers": 0}} | known
    evidence = Evidence(kind="cpu", **known)
    return with_advice(evaluate(loader.waiting_for_data, evidence), evidence)


def test_the_advice_for_a_watched_loop_is_in_the_names_of_its_script():
    names = user_script("DataLoader(data, 8, shuffle=True, collate_fn=pad_together)")
    watched = "list(seen := watch(train_loader, live=False)) and seen.run.loop['code']"
    code = LoopCode.of(in_script(names, watched, watch=lk.watch))
    assert fed(code=code, advised=4).code == (
        "train_loader = DataLoader(\n"
        "    data,\n    batch_size=8,\n    shuffle=True,\n"
        "    collate_fn=pad_together,\n    num_workers=4,\n"
        ")\n"
    )


def test_no_line_to_paste_drops_an_argument_or_names_what_is_not_there():
    inline = "call_of(DataLoader(data, 8, collate_fn=lambda items: items))"
    code = LoopCode.of(in_script(user_script("None"), inline, call_of=call_of))
    told = code.lines({"num_workers": 4})
    assert told.startswith("# loader = ") and "collate_fn=collate_fn" in told  # it has no name
    of_batches = code_of(user_script("DataLoader(data, batch_sampler=batches_of_4)"))
    assert of_batches.lines({"batch_size": 8}) == ""
    for unknown in (None, {"loader": [1]}):
        assert LoopCode.of(unknown).lines({"num_workers": 4}) == ""


def test_a_trainers_user_is_given_a_line_that_changes_their_training_arguments():
    code = LoopCode(trainer=True)
    finding = fed(use=CoreUse(2), code=code)
    assert finding.code == "# TrainingArguments(..., dataloader_num_workers=2)\n"
