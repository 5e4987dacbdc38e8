"""The slow script: each fix does the same work in another way; runs of it are runs like others."""

import math
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.api import launch
from labkit.course import slow_script as script
from labkit.course.slow_script import SlowScript, other_work, slow_script


def test_fixes_are_made_in_the_ladders_order_and_a_wrong_one_is_refused():
    assert SlowScript(("memory", "data")).fixes == ("data", "memory")
    with pytest.raises(ValueError, match="Unknown fix 'worker'; available: data, items"):
        slow_script("worker")


def trained(losses, precision="fp32"):
    """Return a stand-in of a finished run of the script with these losses."""
    return SimpleNamespace(
        outcome="finished",
        event=lambda _: {"script": {}},
        samples=640,
        loss=losses,
        pipeline=lk.Pipeline(precision=precision),
    )


BEFORE = [2.0] * 9 + [0.01]


@pytest.mark.parametrize(
    "precision, changed, said",
    [
        ("tf32", {9: 0.015}, None),  # rounding beside a loss that has become small
        ("fp32", {5: 2.06}, "other losses"),
        ("bf16", {5: 2.1, 6: 1.9}, None),  # judged by the mean loss
        ("bf16", dict.fromkeys(range(9), 2.3), "other losses"),
        ("fp16", {5: math.nan}, "other losses"),
    ],
)
def test_the_same_training_is_told_from_another(precision, changed, said):
    losses = [changed.get(step, loss) for step, loss in enumerate(BEFORE)]
    found = other_work(trained(losses, precision), trained(BEFORE))
    assert found is None if said is None else found.startswith(said)


@pytest.mark.measures
@pytest.mark.slow
def test_everything_fixed_is_the_same_training_and_at_least_twice_as_fast():
    slow, fast = (launch(SlowScript(fixes, steps=6)).wait() for fixes in ((), script.LADDER))
    assert other_work(fast, slow) is None
    assert "not a finished run of the slow script" in other_work(lk.recorded("workers-0"), slow)
    assert fast.throughput > 2 * slow.throughput
    assert slow.event("spec")["script"] == {"fixes": []}
