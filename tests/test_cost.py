"""The cost of a run: hand-worked examples, and None where energy was not measured."""

import json
import math

import pytest
from played_gpu import CPU, MS, host_steps, log

import labkit as lk


@pytest.fixture
def record(tmp_path):
    """Make a record: a device that waits and works in turn, and draws `watts(busy)`."""

    def make(watts=None, wait_ms=30, busy_ms=10, steps=100, **machine):
        """20 samples a step."""
        events = host_steps(wait_ms, busy_ms, steps, n=20)
        step_ms = wait_ms + busy_ms
        joules = 0.0 if watts else None
        for at in range(0, steps * step_ms + 1, 200):
            events.append({"event": "telemetry", "t_ns": (1000 + at) * MS, "energy_j": joules})
            if watts:
                joules += watts(at % step_ms >= wait_ms) / 5
        return log(tmp_path, CPU | machine, {}, *events)

    return make


def test_a_hand_worked_example(record):
    # 20 samples in 40 ms: 500 samples/s. 100 W: 0.2 J a sample. A million samples: 2000 s, 200 kJ;
    # an epoch is ImageNet's
    millions = 1.281167
    prices = {"usd_per_hour": 1.8, "kg_co2_per_kwh": 0.5}
    found = lk.cost(record(watts=lambda busy: 100), **prices)
    assert found.joules_per_sample == pytest.approx(0.2)
    assert found.kwh_per_epoch == pytest.approx(millions * 200e3 / 3.6e6)
    spent = found.hours_per_epoch, found.usd_per_epoch
    assert spent == pytest.approx((millions * 2000 / 3600, millions))
    assert found.kg_co2_per_epoch == pytest.approx(millions * 200e3 / 3.6e6 / 2)
    assert found.idle_usd_per_epoch == pytest.approx(0.75 * millions)  # idle for 30 of 40 ms
    # one that draws less while idle: 1 s at 50 W and 1 s at 300 W
    slow = {"wait_ms": 1000, "busy_ms": 1000, "steps": 20}
    assert lk.cost(record(watts=lambda busy: 300 if busy else 50, **slow)).watts == 175


def test_without_a_counter_energy_and_carbon_are_gaps_and_money_is_not(record):
    found = lk.cost(record(), usd_per_hour=3.6)
    assert found.watts is found.joules_per_sample is found.kwh_per_epoch is None
    assert found.kg_co2_per_epoch is None
    assert found.usd_per_epoch == pytest.approx(1_281_167 / 500 * 0.001)
    assert "energy was not measured" in repr(found) and "0 kWh" not in repr(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_without_a_price_money_is_a_gap_and_a_page_holds_no_code_of_a_record(record):
    found = lk.cost(record(kind="gpu", name="NVIDIA X <1>"))
    assert found.usd_per_epoch is None and "give usd_per_hour" in repr(found)
    assert "RECORDED on NVIDIA X <1>" in repr(found) and "<1>" not in found._repr_html_()


def test_a_bad_price_and_a_run_without_numbers_are_refused(record):
    for bad in (-1, math.nan):
        with pytest.raises(ValueError, match=r"kg_co2_per_kwh.*is not allowed"):
            lk.cost(record(), kg_co2_per_kwh=bad)
    with pytest.raises(ValueError, match="no cost"):
        lk.cost(record(steps=1))
