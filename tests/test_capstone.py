"""The slow script: each fix does the same work in another way; runs of it are runs like others."""

import numpy as np
import pytest

from labkit.api import launch
from labkit.course.slow_script import LADDER, SlowScript, slow_script


def test_a_fix_that_is_none_is_refused():
    with pytest.raises(ValueError, match="Unknown fix 'worker'; available: data, items"):
        slow_script("worker")


@pytest.mark.measures
@pytest.mark.slow
def test_everything_fixed_is_the_same_training_and_at_least_twice_as_fast(monkeypatch):
    monkeypatch.setenv("LABKIT_QUICK", "1")
    stages = ((), [fix for fix in LADDER if fix != "precision"], LADDER)
    slow, exact, fast = (launch(SlowScript(fixes)).wait() for fixes in stages)
    assert exact.loss == pytest.approx(slow.loss, rel=0.01)
    assert np.mean(fast.loss) == pytest.approx(np.mean(slow.loss), rel=0.05)
    assert fast.throughput > 2 * slow.throughput
