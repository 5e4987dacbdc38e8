"""The panel without a browser: its handlers in an event loop, on recorded runs."""

import asyncio
import json
import os
import re
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers import ended, until

import labkit as lk
from labkit import Pipeline, Run
from labkit.process import device_lock
from labkit.results.failures import REMEDIES
from labkit.spec import KNOBS
from labkit.stamps.record import events_of

QUICK = Pipeline(dataset="sleep", prep_ms=10, steps=20, seconds=None)


def record_of(name):
    return lk.recorded(f"Intel-Xeon-Processor/{name}").path


def played():
    """Return a panel of a pipeline whose runs are played from a record."""
    shown = lk.panel(QUICK, ["num_workers", "prefetch_factor"])
    path = record_of("workers-6")

    def launch(asked):
        left = list(events_of(path))
        folder = Path(tempfile.mkdtemp(dir=os.environ["LABKIT_HOME"]))

        class Process(Mock):
            def stop(self):
                left[:] = [{"event": "end", "t_ns": 0, "stop": "asked", "code": None}]

            @property
            def is_alive(self):
                if left:  # each look finds one more
                    with open(folder / "events.jsonl", "a") as log:
                        log.write(json.dumps(left.pop(0)) + "\n")
                return bool(left)

        return Run(folder, Process())

    shown.launch = launch
    return shown


def test_a_device_that_stays_busy_names_the_process_how_to_wait_and_how_to_end_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(device_lock, "PATIENCE_S", 0.0)
    held = device_lock.hold(tmp_path, "cpu", "run-1", waiting=print)
    with pytest.raises(device_lock.DeviceBusy) as busy:
        device_lock.hold(tmp_path, "cpu", "run-2", waiting=print)
    os.close(held)
    said = str(busy.value)
    assert f"in use by run run-1 (process {os.getpid()} on " in said
    assert f"`kill {os.getpid()}` ends it" in said
    assert not any(re.search(pattern, said) for pattern in REMEDIES)  # which press buttons


# -- controls, and what each kind of panel asks for ----------------------------------------------


@pytest.mark.parametrize("name", KNOBS)
def test_a_control_holds_its_knobs_default_and_cannot_send_what_the_knob_refuses(name):
    knob = KNOBS[name]
    shown = lk.panel(knobs=[name], num_workers=2)
    control = shown.controls[name]
    assert shown.values[name] == getattr(shown.pipeline, name)
    assert knob.help in control.tooltip and name in control.description
    for value in control.options:
        control.value = value
        knob.check(shown.values[name])


def test_a_panel_starts_from_a_pipeline_and_follows_its_controls():
    shown = lk.panel(QUICK, knobs=["num_workers", "prefetch_factor"], batch_size=8)
    assert shown.next_pipeline == QUICK.but(batch_size=8) and shown.run is None
    shown.controls["num_workers"].value = 3
    assert shown.next_pipeline.num_workers == 3
    text = shown._repr_mimebundle_()["text/plain"]  # for a viewer without widgets
    assert text == "labkit panel for num_workers, prefetch_factor"
    with pytest.raises(ValueError, match="did you mean 'num_workers'"):
        lk.panel(knobs=["num_worker"])


# -- what a slider would bring, and what was changed ---------------------------------------------


def load_recorded(name):
    return lk.load(record_of(name))


def with_runs(*names):
    """Return a panel of the default pipeline in which these recorded runs have ended."""
    shown = lk.panel(Pipeline(), ["num_workers", "prefetch_factor", "batch_size"])
    for name in names:
        run_recorded(shown, name)
    return shown


def run_recorded(shown, name):
    """Let a cell ask for what was recorded under this name: it is measured there."""
    run = load_recorded(name)

    def launch(asked):
        assert shown.stop_button.disabled  # nothing is heard while a cell waits
        return run

    shown.launch = launch
    return shown.run_of(num_workers=run.asked.num_workers)


def test_a_moved_slider_says_what_to_expect_and_a_run_how_right_that_was():
    assert "Run once" in with_runs().prediction.value
    shown = with_runs("workers-0")
    shown.controls["num_workers"].value = 6
    found = lk.predict(shown.run, num_workers=6)
    assert str(found) in shown.prediction.value
    assert shown.view.expected[1] == found.utilization
    came = run_recorded(shown, "workers-6")
    assert f"It came to {came.throughput:,.0f} samples/s. {found}" in shown.prediction.value
    assert "(num_workers 0 → 6): 4.95x faster" in shown.verdict.value
    assert shown.run_of(num_workers=0) is shown.runs[0] and not shown.run_button.disabled
    shown.controls["batch_size"].value = 256
    assert "cannot predict: the effect of batch_size was not measured" in shown.prediction.value


# -- run, follow, stop ---------------------------------------------------------------------------


def test_knobs_that_do_not_go_together_are_explained_and_start_nothing():
    async def scenario():
        shown = played()
        shown.controls["prefetch_factor"].value = 4
        assert "prefetch_factor=4 needs loader workers" in shown.prediction.value
        shown.start()
        await ended(shown)
        assert "needs loader workers" in shown.verdict.value and shown.runs == []
        shown.controls["num_workers"].value = 1
        assert "go together" not in shown.prediction.value

    asyncio.run(scenario())


def test_outside_a_notebook_run_says_what_to_do_instead():
    shown = lk.panel(QUICK)
    shown.run_button.click()
    assert "use labkit.run()" in shown.verdict.value
    assert not shown.run_button.disabled


def test_ten_presses_of_run_start_one_run_stop_ends_it_and_the_kernel_stays_free():
    """JupyterLab delivers presses in a subshell's thread, but early ones in the main thread."""

    async def scenario():
        shown = played()

        async def press_ten_times():
            for _ in range(5):
                shown.start()
                await asyncio.to_thread(shown.run_button.click)

        workers = shown.controls["num_workers"]
        await asyncio.to_thread(setattr, workers, "value", 3)
        await press_ten_times()
        await until(
            lambda: shown.view.frame.get("steps", 0) >= 3
        )  # and not only when the run has ended
        await press_ten_times()
        assert shown.running and "Running" in shown.verdict.value  # and not of the run before
        assert shown.task.get_loop() is asyncio.get_running_loop()
        await asyncio.to_thread(shown.stop_button.click)
        await ended(shown)
        assert [run.outcome for run in shown.runs] == ["stopped"]
        assert "Running" not in shown.verdict.value
        assert shown.view.frame["steps"] == shown.run.steps

    asyncio.run(scenario(), debug=True)  # in which a loop refuses what is not thread-safe


def test_no_run_is_left_behind_when_drawing_breaks_or_the_panel_is_closed(monkeypatch):
    async def scenario():
        broken = played()
        monkeypatch.setattr(broken.view, "update", lambda *_: {}["<canvas>"])
        closed = played()
        for shown in (broken, closed):
            shown.start()
        await until(lambda: closed.view.frame)
        closed.close()
        for shown in (broken, closed):
            await asyncio.wait_for(shown.task, 120)
            assert shown.run.outcome == "stopped" and not shown.run.running
        assert "KeyError: &#x27;&lt;canvas&gt;&#x27;" in broken.verdict.value

    asyncio.run(scenario())
