"""Text: its batches, the decoder that trains on them, and what a run says of padding."""

import itertools

import pytest
import torch
from torch.nn import functional

import labkit as lk
from labkit.bench.data import make_loader
from labkit.bench.loop import Trainer
from labkit.bench.model_size import plain_job
from labkit.bench.models import GPT
from labkit.bench.text import Text, counted


def job_of(**knobs):
    """Return a small job that trains on text."""
    small = {"model": "gpt", "width": 16, "depth": 2, "context": 64, "batch_size": 8}
    loader = {"dataset": "text", "io_ms": 0, "stall_ms": 0, "num_workers": 0, "pin_memory": False}
    return plain_job(torch.device("cpu"), **small | loader | knobs)


@pytest.fixture(scope="module")
def text():
    """Documents of the standard library, of 64 bytes at the most."""
    return Text(job_of())


def test_a_batch_holds_its_documents_and_says_what_is_real(text):
    rows, lengths = text.collate([text[0, index] for index in range(8)])
    found = [row[:length].numpy().tobytes() for row, length in zip(rows, lengths, strict=True)]
    assert found == text.documents[:8]
    documents, (_, real) = counted(rows, lengths)
    assert documents == 8
    assert real == sum(text.lengths[:8])


def test_the_order_is_the_seeds_and_ranks_share_it(text):
    whole = list(itertools.islice(iter(text.sampler(job_of())), 200))
    assert whole == list(itertools.islice(iter(text.sampler(job_of())), 200))
    assert whole != list(itertools.islice(iter(text.sampler(job_of(seed=1))), 200))
    job = job_of(batch_size=4)  # two ranks of four have what one of eight has
    shares = [list(itertools.islice(iter(text.sampler(job, r, 2)), 100)) for r in (0, 1)]
    assert sorted(shares[0] + shares[1], key=lambda ticket: ticket[0]) == whole


def test_training_sees_real_tokens_only_and_learns(text):
    job = job_of()
    trainer = Trainer(job, torch.device("cpu"))
    rows, lengths = next(iter(make_loader(text, job)))
    wider = functional.pad(rows, (0, 3))[:, :65]  # more padding changes nothing
    first, same = (trainer.compute(b, lengths, update=False) for b in (rows, wider))
    assert same.item() == pytest.approx(first.item(), rel=1e-5)
    losses = [trainer.compute(rows, lengths, update=True).item() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.02


def test_no_token_sees_a_later_one():
    torch.manual_seed(0)
    rows = torch.randint(1, 256, (1, 24))
    plain = GPT(64, 2, 256, 32).eval()
    other = rows.clone()
    other[0, 12:] = 7
    assert torch.allclose(plain(rows)[:, :12], plain(other)[:, :12], atol=1e-5)


@pytest.mark.parametrize(("knobs", "said"), [
    ({"dataset": "text", "model": "mlp"}, "model='mlp' cannot train on dataset='text'"),
    ({"model": "gpt"}, "model='gpt' cannot train on dataset='jpeg'"),
    ({"dataset": "text", "augment": 3}, "augment=3 is for images"),
    ({"dataset": "text", "image_px": 64}, "image_px=64 is for images"),
    ({"dataset": "array", "context": 64}, "context=64 is for dataset='text'"),
])  # fmt: skip
def test_knobs_of_the_other_kind_of_data_are_refused(knobs, said):
    with pytest.raises(ValueError, match=said):
        lk.Pipeline(**knobs)
    assert lk.Pipeline(dataset="text").model == "gpt"


@pytest.mark.measures
@pytest.mark.slow
def test_a_run_on_text_names_padding():
    run = lk.run(lk.Pipeline(dataset="text", steps=40, seconds=None, width=16, depth=1))
    assert run.outcome == "finished", run.error
    assert 0.2 < run.padding < 0.6 and run.samples == 40 * 16
    assert run.real_tokens_per_s == pytest.approx((1 - run.padding) * run.tokens_per_s)
    assert {"tokens_per_s", "real_tokens_per_s", "padding"} <= set(run.to_dict())
    (finding,) = [f for f in run.diagnose().findings if f.cause == "padding"]
    assert finding.name == "compute" and 0.15 < finding.lost_share < run.padding + 0.01
    assert [remedy.key for remedy in finding.remedies] == ["pad_less"]
