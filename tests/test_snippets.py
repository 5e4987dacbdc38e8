"""Every line that the kit prints runs when it is pasted, and keeps what it does not change.

A user's script is a namespace here; each line is executed in it, as a paste would be.
"""

import dataclasses
import functools
import multiprocessing
from types import SimpleNamespace

import numpy as np
import pytest

import labkit as lk
from labkit.bench import user_step
from labkit.diagnosis import idle_rules
from labkit.diagnosis import loader_remedies as cures
from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.device_remedies import (
    COMPILE,
    FEWER_LAUNCHES,
    FUSE,
    FUSED_OPTIMIZER,
    LARGER_BATCH,
    PROCESS_PER_CARD,
)
from labkit.diagnosis.estimate import Estimate, Workers
from labkit.diagnosis.evidence import Batch, Evidence, WorkerEvidence
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.gather import known_of
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.trainer_code import trainer_lines
from labkit.diagnosis.wording import worded
from labkit.tuning.set_up import tuner
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import Trial
from labkit.watching import script_loops
from labkit.watching.loader_call import call_of, call_with

torch = pytest.importorskip("torch")
forks = pytest.mark.skipif(
    multiprocessing.get_start_method() != "fork", reason="workers started anew lack the script"
)
SCRIPT = """
import torch
from torch.utils.data import (
    BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset,
    WeightedRandomSampler,
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
weighted = WeightedRandomSampler([1.0] * 64, 32)
batches_of_4 = BatchSampler(SequentialSampler(data), 4, drop_last=True)
net = torch.nn.Linear(4, 2)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOADERS = [
    "DataLoader(data)",
    "DataLoader(data, 8, shuffle=True, generator=order, drop_last=True)",
    "DataLoader(data, 8, sampler=weighted)",
    "DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=16))",
    "DataLoader(data, batch_sampler=batches_of_4)",
    "DataLoader(data, batch_size=None, sampler=batches_of_4)",
    "DataLoader(data, 8, collate_fn=pad_together)",
    "DataLoader(data, 8, collate_fn=lambda items: (len(items), 'inline'))",
    "DataLoader(data, 8, num_workers=1, worker_init_fn=seed_worker, timeout=60, in_order=False)",
    "DataLoader(data, 8, num_workers=1, multiprocessing_context='fork', prefetch_factor=3,"
    " persistent_workers=True, pin_memory=True)",
    "DataLoader(stream, batch_size=8)",
    "torch.utils.data.DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True)",
]
CHANGES = [
    {"num_workers": 1},
    {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
    {"prefetch_factor": 4, "num_workers": 1},
    {"persistent_workers": True, "num_workers": 1},
    {"pin_memory": True, "non_blocking": True},
]
KEPT = (
    "batch_size",
    "drop_last",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "timeout",
    "persistent_workers",
    "in_order",
    "worker_init_fn",
    "multiprocessing_context",
)
PARTS = ("sampler", "batch_sampler", "collate_fn", "generator")


@pytest.fixture(autouse=True)
def workers_end_soon(monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # not 5 s


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
    """Return what makes two loaders alike: their settings, and the kinds and states of the rest."""
    found = {name: getattr(loader, name, None) for name in KEPT}
    found |= {name: type(getattr(loader, name)) for name in PARTS}
    collate = loader.collate_fn
    sampler = loader.sampler
    return found | {
        "class": type(loader),
        "data": len(loader.dataset) if hasattr(loader.dataset, "__len__") else "stream",
        "function": getattr(collate, "__code__", None),
        "replacement": getattr(sampler, "replacement", None),
        "samples": getattr(sampler, "num_samples", None),
        "seed": loader.generator and loader.generator.initial_seed(),
    }


@forks
@pytest.mark.parametrize("made", LOADERS)
def test_what_a_watched_loop_is_told_to_type_keeps_every_argument_that_does_not_change(made):
    names = user_script(made)
    recorded = in_script(names, "watching(train_loader)", watching=recorded_code)
    code = LoopCode.of(recorded)
    before = described(names["train_loader"])
    for changes in CHANGES:
        line = code.lines(changes)
        pasted = dict(names)
        exec(line, pasted)
        wanted = before | {name: value for name, value in changes.items() if name in KEPT}
        if not wanted["num_workers"]:
            wanted |= {"prefetch_factor": None, "persistent_workers": False}
            wanted |= {"multiprocessing_context": None, "timeout": 0}
        elif wanted["prefetch_factor"] is None:
            wanted["prefetch_factor"] = 2
        assert described(pasted["train_loader"]) == wanted, line
    exec(code.lines({"num_workers": 0}), names)
    assert next(iter(names["train_loader"])) is not None


def fed(**known):
    """Return what is found of a loop that waits half of the time for a loader without workers."""
    known = {"wait_share": 0.5, "compute_share": 0.5, "knobs": {"num_workers": 0}} | known
    evidence = Evidence("cpu", **known)
    return worded(with_gains(idle_rules.waiting_for_data(evidence), evidence, None), evidence)


def recorded_code(loader):
    """Return what a watch of `loader` records of the script around it."""
    with lk.watch(loader, live=False) as watched:
        iterator = iter(watched)
        del iterator
    return watched.run.loop_code


class Scaled(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


SOME_MODELS = {
    "torch's": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),
    "inherited": lambda: type("Net", (torch.nn.Sequential,), {})(torch.nn.Linear(4, 4)),
    "own": lambda: Scaled(torch.nn.Linear(4, 4)),
}


def graphs_of(call):
    """Return how many graphs Dynamo makes while a batch is handed to `call`."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call(torch.zeros(2, 4))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("kind", SOME_MODELS)
def test_what_is_pasted_compiles_a_model_as_what_a_search_measures_does(kind, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    loader = torch.utils.data.DataLoader(range(4))
    net = SOME_MODELS[kind]()
    watched = LoopCode.of(call_of(loader))
    searched = LoopCode.of(call_with(loader.dataset, model=net)).with_names()
    assert watched.compiles_in_place == searched.compiles_in_place == (kind == "own")
    for code in (watched, searched):
        names = {"torch": torch, "net": SOME_MODELS[kind]()}
        exec(code.lines({"compile": "default"}), names)
        assert graphs_of(names["net"]) == 1
    job = SimpleNamespace(device="cpu", xray=False, compile="default", precision="fp32")
    step = user_step.OwnStep(lambda batch: net(batch).sum(), net, None, job)
    step._check_and_compile(torch.zeros(2, 4))
    assert graphs_of(net) == 1


def test_a_function_that_makes_the_model_does_not_name_it():
    def make_net():
        return SOME_MODELS["torch's"]()

    searched = LoopCode.of(call_with(range(4), model=make_net)).with_names()
    assert searched.lines({"compile": "default"}) == (
        "model = torch.compile(model)  # save model._orig_mod.state_dict()\n"
    )


def test_the_model_is_the_one_that_has_weights_and_the_others_as_its_parts():
    make = torch.utils.data.DataLoader
    nn = torch.nn

    def compiled():
        model = nn.Linear(4, 4)
        unoptimized_model = model
        model = torch.compile(model, backend="eager")
        criterion = nn.CrossEntropyLoss()
        return call_of(make(range(4))), model, unoptimized_model, criterion

    def in_place():
        net = nn.Sequential(Scaled(nn.Linear(4, 4)), nn.ReLU())
        net[0].compile(backend="eager")
        criterion = nn.CrossEntropyLoss()
        return call_of(make(range(4))), net, criterion

    def parts():
        backbone, head = nn.Linear(4, 4), nn.Linear(4, 2)
        whole = nn.Sequential(backbone, head)
        return call_of(make(range(4))), whole

    def as_step():
        net = nn.Linear(4, 4)

        @torch.compile(backend="eager")
        def train_step(x):
            net(x).sum().backward()

        return call_of(make(range(4))), net, train_step

    def as_method():
        class Fit:
            def __init__(self):
                self.net = nn.Linear(4, 4)
                self.step = torch.compile(self.step, backend="eager")

            def step(self, x):
                return self.net(x).sum()

            def run(self):
                return call_of(make(range(4)))

        return (Fit().run(),)

    def as_loss():
        net = nn.Linear(4, 4)

        def loss_of(net, x):
            return net(x).sum()

        loss_of = torch.compile(loss_of, backend="eager")
        return call_of(make(range(4))), net, loss_of

    def left_out():
        net = nn.Linear(4, 4)

        @torch.compiler.disable
        def train_step(x):
            net(x).sum().backward()

        return call_of(make(range(4))), net, train_step

    def helper():
        net = nn.Linear(4, 4)
        halved = torch.compile(lambda x: x / 2, backend="eager")
        return call_of(make(range(4))), net, halved

    def two():
        generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 4)
        return call_of(make(range(4))), generator, discriminator

    for script, model, is_compiled in (
        (compiled, "model", True),
        (in_place, "net", True),
        (parts, "whole", False),
        (as_step, "net", True),
        (as_method, "self.net", True),
        (as_loss, "net", True),
        (left_out, "net", False),
        (helper, "net", False),
        (two, None, False),
    ):
        code = script()[0]
        assert (code["model"], code["is_compiled"]) == (model, is_compiled)


@pytest.mark.slow
def test_the_advice_for_a_watched_loop_is_in_the_names_of_its_script():
    names = user_script("DataLoader(data, 8, shuffle=True, collate_fn=pad_together)")
    code = LoopCode.of(in_script(names, "watching(train_loader)", watching=recorded_code))
    assert fed(code=code, advised=Workers(4, Estimate(2.0, 1.5, 2.5))).code == (
        "train_loader = DataLoader(\n"
        "    data, batch_size=8, shuffle=True, num_workers=4, collate_fn=pad_together\n"
        ")\n"
    )
    changes = {"channels_last": True, "precision": "bf16", "compile": "default"}
    exec(code.lines(changes), names)
    exec(code.lines({"fused_optimizer": True, "precision": "tf32"}), names)
    assert names["sgd"].param_groups[0]["fused"] and names["sgd"].param_groups[0]["lr"] == 0.1
    assert names["net"].forward(torch.zeros(1, 4)).dtype == torch.bfloat16
    torch.set_float32_matmul_precision("highest")


def test_workers_beside_a_model_on_the_cpu_come_with_threads_that_leave_them_cores():
    code = LoopCode(loader="loader", call="DataLoader", arguments={"dataset": "data"})
    advised = Workers(2, Estimate(1.7, 1.3, 2.2), threads=1)
    short = SimpleNamespace(passes=3, pass_s=1.0, restart=0.0, loading=None, cold=0.0)
    told = fed(code=code, advised=advised, use=CoreUse(2))
    assert told.code.startswith("import torch\n\ntorch.set_num_threads(1)")
    assert told.code.endswith("loader = DataLoader(data, num_workers=2)\n")
    kept = cures.WORKERS.for_run(
        Evidence("cpu", knobs={"num_workers": 0}, advised=advised, loop=short)
    )
    assert kept.changes == {"num_workers": 2, "persistent_workers": True}
    assert fed(code=LoopCode(), advised=advised).code == ""  # no threads without the loader's line
    plain = Workers(2, Estimate(1.7, 1.3, 2.2))
    assert "set_num_threads" not in fed(code=code, advised=plain, use=CoreUse(2)).code


TRAINER = """
class Trainer:
    def __init__(self, args):
        self.args = args

    def train(self, call, loader):
        return call(loader)
"""


def in_trainer(**asked):
    """Return the evidence of a loop in a Trainer with these arguments."""
    names = {"__name__": "transformers.trainer"}
    exec(compile(TRAINER, "/x/site-packages/transformers/trainer.py", "exec"), names)
    trainer = names["Trainer"](SimpleNamespace(**asked))
    found = trainer.train(call_of, torch.utils.data.DataLoader([1, 2]))
    code = dataclasses.replace(LoopCode.of(found), training="args")
    evidence = Evidence("gpu", code=code, trainer=True, may_fuse=code.may_fuse)
    return dataclasses.replace(evidence, knobs={"batch_size": 16})


@pytest.mark.parametrize("cards, per_device", [(1, 64), (2, 32)])
def test_a_larger_batch_of_a_trainer_with_several_cards_is_pasted_as_that_of_one(cards, per_device):
    evidence = in_trainer(n_gpu=cards)
    finding = Finding("launch", "gaps_between_kernels", 0.5, (), (LARGER_BATCH,))
    told = worded(with_gains(finding, evidence, None), evidence)
    assert "batch_size=64" in told.advice
    assert f"(args, per_device_train_batch_size={per_device})" in told.code


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("by_trainer", [True, False])
def test_a_process_with_several_cards_is_split_before_its_model_is_compiled(cards, by_trainer):
    model = torch.nn.DataParallel(torch.nn.Linear(4, 4))
    model.device_ids = list(range(cards))
    if by_trainer:
        evidence = in_trainer(n_gpu=cards, torch_compile=cards > 1)
    else:
        loader = torch.utils.data.DataLoader(range(4))
        evidence = Evidence("gpu", code=LoopCode.of(call_of(loader)))
    assert evidence.code.cards == cards and not evidence.code.is_compiled
    told = [remedy.for_run(evidence) for remedy in (PROCESS_PER_CARD, COMPILE, FUSE)]
    keys = [remedy.key for remedy in told if remedy]
    assert keys == (["compile", "fuse"] if cards == 1 else ["process_per_card"])


@pytest.mark.parametrize(
    "optim, compiles, lines",
    [
        ("adamw_torch", False, ["torch_compile=True", "optim='adamw_torch_fused'"]),
        ("adamw_torch_fused", False, ["torch_compile=True"]),
        ("adafactor", True, []),
    ],
)
def test_a_trainers_arguments_tell_what_it_compiles_and_whether_its_optimizer_is_fused(
    optim, compiles, lines
):
    evidence = in_trainer(torch_compile=compiles, optim=optim)
    remedies = [each.for_run(evidence) for each in (COMPILE, FUSED_OPTIMIZER)]
    told = [trainer_lines("args", each.changes) for each in remedies if each]
    assert [line.split("args, ")[1].rstrip(")\n") for line in told] == lines


@pytest.mark.parametrize("every, graphs", [(1, True), (2, False), (4, False)])
def test_cuda_graphs_are_told_only_to_a_loop_that_updates_after_every_batch(every, graphs):
    weights = [torch.nn.Parameter(torch.ones(1))]
    with lk.watch(torch.utils.data.DataLoader(range(16)), live=False) as watched:
        for _ in range(2):
            optimizers = [torch.optim.SGD(weights, lr=0.1) for _ in range(2)]  # anew, as in folds
            for number, _ in enumerate(watched):
                if number % every == 0:
                    for optimizer in optimizers:
                        watched._recorder.trained_by(optimizer)
    assert all(each["trains"] for each in watched.run.passes_ended)
    evidence = known_of(watched.run, np.ones(16), np.ones(16), 0.0)
    evidence = dataclasses.replace(evidence, kind="gpu", compiles=True, code=LoopCode(model="net"))
    mode = "mode='reduce-overhead'" if graphs else ""
    note = "  # clone() outputs that you keep" if graphs else ""
    fitting = COMPILE.for_run(evidence)
    assert LoopCode(model="net").lines(fitting.changes) == f"net.compile({mode}){note}\n"


@pytest.mark.parametrize("sizes, graphs", [(2, True), (40, False)])
def test_nor_are_they_told_to_a_loop_whose_batches_differ_in_size(sizes, graphs):
    evidence = Evidence("gpu", batches_an_update=1, batch=Batch(sizes=sizes))
    found = COMPILE.for_run(evidence).changes["compile"]
    assert (found == "reduce-overhead") == graphs


def test_nor_does_a_script_for_another_machine_have_them_where_gradients_accumulate():
    pipeline = lk.Pipeline(device="cuda", compile="reduce-overhead", width=64, depth=4)
    assert "reduce-overhead" in lk.script(pipeline)
    gathers = lk.script(pipeline.but(accumulation_steps=8))
    assert "torch.compile(model)" in gathers and 'mode="reduce-overhead"' not in gathers


def test_of_two_names_the_first_one_is_compiled():
    names = {"model": SOME_MODELS["torch's"](), "watching": recorded_code}
    names |= {"raw_model": names["model"], "loader": torch.utils.data.DataLoader(range(4))}
    code = LoopCode.of(in_script(names, "watching(loader)"))
    assert code.lines({"compile": "default"}).startswith("model = torch.compile(model)")


def test_a_compiled_loop_of_a_batch_size_that_nobody_knows_is_still_told_something():
    evidence = Evidence("gpu", code=LoopCode(is_compiled=True), may_fuse=False)
    told = [each.for_run(evidence) for each in FEWER_LAUNCHES]
    assert [each.key for each in told if each] == ["more_per_launch"]


@pytest.mark.parametrize("kind", ["", "sampler", "dataset"])
def test_workers_are_kept_with_a_word_on_what_set_epoch_sets_where_there_is_one(kind):
    data_of = torch.utils.data

    class Shards(data_of.TensorDataset):
        def set_epoch(self, epoch):
            pass

    class Order(data_of.SequentialSampler):
        def set_epoch(self, epoch):
            pass

    data = (Shards if kind == "dataset" else data_of.TensorDataset)(torch.zeros(64, 4))
    order = Order(data) if kind == "sampler" else None
    loader = data_of.DataLoader(data, 8, sampler=order, num_workers=2)
    code = LoopCode.of(call_of(loader))
    workers = WorkerEvidence((0.9, 0.9), epoch_start_share=0.4)
    told = fed(code=code, workers=workers, knobs={"num_workers": 2})
    assert told.cause == "workers_restart" and "persistent_workers=True" in told.advice
    assert ("do not see what set_epoch() sets" in told.advice) == bool(kind)


@pytest.mark.parametrize("remade", ["loader", "dataset"])
@pytest.mark.parametrize("knobs", [{}, {"persistent_workers": True}])
def test_workers_that_end_with_the_loader_of_each_epoch_are_kept_by_making_it_once(remade, knobs):
    names = user_script("None") | {"size": 24}
    names["whole"] = names["data"]
    data = "data" if remade == "loader" else "train_loader.dataset"
    arguments = {"dataset": data, "batch_size": "8", "shuffle": "True", "num_workers": "2"}
    code = LoopCode("train_loader", call="DataLoader", arguments=arguments, remade=remade)
    workers = WorkerEvidence((0.9, 0.9), epoch_start_share=0.4)
    told = fed(code=code, workers=workers, knobs={"num_workers": 2, **knobs})
    assert "the loader made once, above the loop over the epochs" in told.advice
    assert ("sampler" in told.advice) == (remade == "dataset")
    exec(told.code, names)
    made = names["train_loader"]
    assert (made.batch_size, made.num_workers, made.persistent_workers) == (8, 2, True)
    assert sum(map(len, made.batch_sampler)) == (24 if remade == "dataset" else len(names["data"]))
    unnamed = dataclasses.replace(code, arguments=arguments | {"collate_fn": "train_loader.f"})
    assert unnamed.lines({"persistent_workers": True}) == ""


def test_a_knob_of_the_step_that_is_switched_off_needs_no_line_and_one_without_a_name_has_none():
    code = LoopCode(loader="loader", call="DataLoader", arguments={"dataset": "data"})
    off = {"non_blocking": False, "compile": None, "channels_last": False}
    assert code.lines({"num_workers": 0} | off) == "loader = DataLoader(data, num_workers=0)\n"
    unnamed = dataclasses.replace(code, arguments={"dataset": "loader.dataset"})
    assert unnamed.lines({"num_workers": 2}).startswith("# below the line that makes loader now\n")
    assert code.lines({"num_workers": 0, "compile": "default"}) == ""


def test_a_loader_that_is_gone_before_the_next_one_was_made_anew():
    written = []
    log = SimpleNamespace(write=lambda event, **fields: written.append((event, fields)))
    loop = script_loops.WatchedLoop(SimpleNamespace(log=log))
    data = torch.utils.data.TensorDataset(torch.zeros(8))
    for made in [torch.utils.data.DataLoader(data) for _ in range(2)]:
        loop.feed_from(made)
        loop.feed_from(made)
    del made
    assert not written  # two loaders that are kept
    loop.feed_from(torch.utils.data.DataLoader(data))
    loop.feed_from(torch.utils.data.DataLoader(data))
    loop.feed_from(torch.utils.data.DataLoader([1]))
    assert [fields["dataset"] for _, fields in written[-2:]] == [False, True]


def test_threads_that_wait_for_cores_of_busy_workers_are_given_up_first():
    code = LoopCode(loader="loader", call="DataLoader", arguments={"dataset": "data"})
    busy = WorkerEvidence((0.4,) * 4, in_line_share=0.6, item_cpu_ms=0.6)
    known = {"code": code, "workers": busy, "use": CoreUse(2), "threads": 2, "wait_us": 9e3,
             "compute_us": 9e3, "quick_compute_us": 1e3,
             "knobs": {"num_workers": 4, "batch_size": 32}}  # fmt: skip
    told = fed(**known)
    assert "1 of its 2 threads" in told.advice and "torch.set_num_threads(1)" in told.code
    assert told.expected[0] == pytest.approx(1.56, abs=0.05)  # 36.8 ms of two cores, over 21.2 + 2
    for calm in ({"compute_us": 1.2e3}, {"threads": 1}, {"use": CoreUse(8)}, {"code": None}):
        assert "set_num_threads" not in fed(**known | calm).code, calm


def test_batches_out_of_order_are_advised_where_workers_rest_behind_a_late_one():
    def told(idle):
        late = WorkerEvidence((0.1, 0.1), idle_share=idle, late_share=0.9,
                              slowest_ratio=40.0, slow_batch_ratio=5.0)  # fmt: skip
        return fed(workers=late, wait_share=0.9, knobs={"num_workers": 2})

    assert "in_order=False" in told(0.4).advice and told(0.4).expected[0] == pytest.approx(1 / 0.6)
    assert "in_order" not in told(0.05).advice


def test_no_line_is_printed_that_would_drop_an_argument_or_name_what_is_not_there():
    names = user_script("DataLoader(data)")
    inline = "DataLoader(data, 8, collate_fn=lambda items: items)"
    watched = f"list(seen := watch({inline}, live=False)) and seen.run.loop_code"
    code = LoopCode.of(in_script(names, watched, watch=lk.watch))
    assert code.lines({"num_workers": 4}) == ""  # the function has no name to be written by
    of_batches = user_script("DataLoader(data, batch_sampler=batches_of_4)")
    recorded = in_script(of_batches, "watching(train_loader)", watching=recorded_code)
    assert LoopCode.of(recorded).lines({"batch_size": 8}) == ""
    for unknown in (None, 3, {"arguments": 3}, {"arguments": {"x": "y"}}, {"loader": [1]}):
        assert LoopCode.of(unknown).lines({"num_workers": 4, "compile": "default"}) == ""
    assert LoopCode().lines({"prefetch_to_device": True}) == ""


@forks
def test_a_loader_that_fetches_a_batch_at_once_gives_the_same_batches_in_the_same_order():
    for made in LOADERS:
        names = user_script(made)
        recorded = in_script(names, "watching(train_loader)", watching=recorded_code)
        code = LoopCode.of(recorded)
        line = fed(code=code, wait_us=100.0).code
        without = ("collate_fn", "stream", "batches_of_4", "(data)")
        assert bool(line) != any(part in made for part in without), made
        if line:
            before = batches_of(names)
            exec(line, names)
            assert batches_of(names) == before, made


def batches_of(names):
    loader = names["train_loader"]
    for generator in (torch.default_generator, loader.generator or names["order"]):
        generator.manual_seed(7)
    return [batch[0].tolist() for batch in loader]


def test_a_trainers_user_is_given_a_line_that_changes_their_training_arguments():
    @dataclasses.dataclass
    class TrainingArguments:  # as transformers' is one
        learning_rate: float
        dataloader_num_workers: int = 0
        bf16: bool = False

    code = LoopCode(training="args")
    finding = fed(
        use=CoreUse(2), trainer=True, advised=Workers(2, Estimate(2.0, 1.5, 2.5)), code=code
    )
    assert "dataloader_num_workers=2" in finding.advice
    exec(finding.code, names := {"args": TrainingArguments(0.1)})
    assert names["args"] == TrainingArguments(0.1, dataloader_num_workers=2)
    exec(trainer_lines("args", {"precision": "bf16"}), names)
    assert names["args"].bf16 and names["args"].dataloader_num_workers == 2
    assert trainer_lines(None, {"num_workers": 2}) == ""  # no name to be written by


@pytest.mark.parametrize("made", [line for line in LOADERS if "batch_sampler" not in line])
def test_what_tune_prints_makes_the_users_own_loader_with_the_best_setting(made):
    names = user_script(made)
    if names["train_loader"].batch_size is None:
        pytest.skip("its dataset is tuned: the loader has no batch size")
    tuning = in_script(names, "tuned(train_loader)", tuned=tuned)
    before = described(names["train_loader"])
    exec(tuning.snippet, names)
    wanted = before | tuning.best | {"multiprocessing_context": before["multiprocessing_context"]}
    assert described(names["train_loader"]) == wanted
    assert tuning.snippet in tuning.script() and "the loader alone" in tuning.headline


def tuned(what, **more):
    """Return a search's result in which one worker was best, without running it."""
    tuning = tuner(what, seconds=1, **more).found
    for workers, rate in ((0, 100.0), (1, 300.0)):
        setting = LoaderSetting.of(tuning.start).but(
            num_workers=workers, prefetch_factor=workers and 2 or None
        )
        tuning.tried.append(Trial(setting.to_dict(), rates=[rate]))
    return tuning
