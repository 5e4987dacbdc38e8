"""Text: three ways to batch it, the decoder that trains on it, and what a run says of padding."""

import itertools

import pytest
import torch
from torch.nn import functional

import labkit as lk
from labkit.bench.data import make_loader
from labkit.bench.loop import Trainer
from labkit.bench.model_size import plain_job
from labkit.bench.models import GPT
from labkit.bench.text import Text, counted, next_bytes, packed

WAYS = lk.Pipeline.knobs["batching"].choices


def job_of(batching, **knobs):
    """Return a small job that trains on text."""
    small = {"model": "gpt", "width": 16, "depth": 2, "context": 64, "batch_size": 8}
    loader = {"dataset": "text", "io_ms": 0, "stall_ms": 0, "num_workers": 0, "pin_memory": False}
    return plain_job(torch.device("cpu"), batching=batching, **small | loader | knobs)


@pytest.fixture(scope="module")
def text():
    """Documents of the standard library, of 64 bytes at the most."""
    return Text(job_of("padded"))


def batches(text, way, documents):
    """Return the batches that hold these documents, each once."""
    text.batching = way
    rows = [[index] for index in documents]
    if way != "padded":
        by_length = sorted(documents, key=text.lengths.__getitem__)
        rows = packed(by_length, text.lengths, 64) if way == "packed" else [[i] for i in by_length]
    items = [text[0, row] for row in rows]
    return [text.collate(items[at : at + 8]) for at in range(0, len(items), 8)]


def test_each_way_gives_every_document_once_and_says_what_is_real(text):
    wanted = range(100)
    for way in WAYS:
        made = batches(text, way, wanted)
        found = []
        said = []
        for rows, lengths in made:
            said.append(counted(rows, lengths))
            for row, length in zip(rows, lengths, strict=True):
                found += row[:length].numpy().tobytes().split(b"\0")[1:]
        assert sorted(found) == sorted(text.documents[i][1:] for i in wanted)
        documents, tokens = zip(*said, strict=True)
        assert sum(documents) == 100
        assert sum(real for _, real in tokens) == sum(text.lengths[i] for i in wanted)


def test_the_loss_of_a_real_token_does_not_depend_on_the_batching(text):
    losses = {}
    for way in WAYS:
        torch.manual_seed(0)
        model = GPT(32, 2, 256, 64, packed=way == "packed")
        total = 0.0
        count = 0
        for batch in batches(text, way, range(24)):
            inputs, targets = next_bytes(*batch)
            logits = model(inputs).flatten(0, 1)
            total += functional.cross_entropy(logits, targets.flatten(), reduction="sum").item()
            count += int((targets >= 0).sum())
        losses[way] = total / count
    assert list(losses.values()) == pytest.approx([losses["padded"]] * 3, rel=1e-5)
    assert 5 < losses["padded"] < 6.5  # a guess among 256 bytes costs ln 256 = 5.5


def test_length_and_packing_take_four_fifths_of_the_padding_away(text):
    job = job_of("padded", context=256, batch_size=16)
    ways = Text(job).survey(job)
    padding = {way: 1 - held["real"] / held["tokens"] for way, held in ways.items()}
    assert padding["padded"] > 0.25
    assert max(padding["by_length"], padding["packed"]) < 0.2 * padding["padded"]
    assert ways["packed"]["documents"] > 16 == ways["padded"]["documents"]


@pytest.mark.parametrize("way", WAYS)
def test_the_order_is_the_seeds_and_ranks_share_it(text, way):
    text.batching = way
    whole = list(itertools.islice(iter(text.sampler(job_of(way))), 200))
    assert whole == list(itertools.islice(iter(text.sampler(job_of(way))), 200))
    assert whole != list(itertools.islice(iter(text.sampler(job_of(way, seed=1))), 200))
    job = job_of(way, batch_size=4)  # two ranks of four have what one of eight has
    shares = [list(itertools.islice(iter(text.sampler(job, r, 2)), 100)) for r in (0, 1)]
    assert sorted(shares[0] + shares[1], key=lambda ticket: ticket[0]) == whole


def test_training_sees_real_tokens_only_and_learns(text):
    job = job_of("padded")
    text.batching = "padded"
    trainer = Trainer(job, torch.device("cpu"))
    rows, lengths = next(iter(make_loader(text, job)))
    wider = functional.pad(rows, (0, 3))[:, :65]  # more padding changes nothing
    first, same = (trainer.compute(b, lengths, update=False) for b in (rows, wider))
    assert same.item() == pytest.approx(first.item(), rel=1e-5)
    losses = [trainer.compute(rows, lengths, update=True).item() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.02


def test_no_token_sees_a_later_one_and_packed_documents_not_each_other():
    torch.manual_seed(0)
    whole = GPT(64, 2, 256, 32, packed=True).eval()
    rows = torch.randint(1, 256, (1, 24))
    rows[0, [0, 10]] = 0
    assert torch.allclose(whole(rows)[:, 10:], whole(rows[:, 10:]), atol=1e-5)
    plain = GPT(64, 2, 256, 32).eval()
    other = rows.clone()
    other[0, 12:] = 7
    assert torch.allclose(plain(rows)[:, :12], plain(other)[:, :12], atol=1e-5)
    assert not torch.allclose(plain(rows)[:, 10:], plain(rows[:, 10:]), atol=1e-3)


@pytest.mark.parametrize(("knobs", "said"), [
    ({"dataset": "text", "model": "mlp"}, "model='mlp' cannot train on dataset='text'"),
    ({"model": "gpt"}, "model='gpt' cannot train on dataset='jpeg'"),
    ({"dataset": "text", "augment": 3}, "augment=3 is for images"),
    ({"dataset": "text", "image_px": 64}, "image_px=64 is for images"),
    ({"batching": "packed"}, "batching='packed' is for dataset='text'"),
    ({"dataset": "array", "context": 64}, "context=64 is for dataset='text'"),
])  # fmt: skip
def test_knobs_of_the_other_kind_of_data_are_refused(knobs, said):
    with pytest.raises(ValueError, match=said):
        lk.Pipeline(**knobs)
    assert lk.Pipeline(dataset="text").model == "gpt"


@pytest.mark.measures
@pytest.mark.slow
def test_a_run_on_text_names_padding_and_predicts_what_it_costs():
    run = lk.run(lk.Pipeline(dataset="text", steps=40, seconds=None, width=16, depth=1))
    assert run.outcome == "finished", run.error
    assert 0.2 < run.padding < 0.6 and run.samples == 40 * 16
    assert run.real_tokens_per_s == pytest.approx((1 - run.padding) * run.tokens_per_s)
    assert {"tokens_per_s", "real_tokens_per_s", "padding"} <= set(run.to_dict())
    (finding,) = [f for f in run.diagnose().findings if f.cause == "padding"]
    assert finding.name == "compute" and 0.15 < finding.lost_share < run.padding + 0.01
    assert [r.changes for r in finding.remedies][0] == {"batching": "by_length"}
    assert lk.predict(run, batching="packed").real_tokens_per_s > 1.1 * run.real_tokens_per_s
