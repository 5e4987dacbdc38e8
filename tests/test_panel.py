"""The panel without a browser: its handlers in an event loop, on replays and a few real runs."""

import asyncio
import os
import re
from types import SimpleNamespace

import pytest
from helpers import ended, until
from replay import play

import labkit as lk
from labkit.process import device_lock
from labkit.results.failures import REMEDIES
from labkit.spec import KNOBS, Distributed, Pipeline
from labkit.tuning.improve import KEPT
from labkit.tuning.search_result import Ladder
from labkit.tuning.trial import START, Trial
from labkit.view import history, panels
from labkit.view.controls import Control

XEON = "Intel-Xeon-Processor"  # of the recorded machines, the one with a CPU
QUICK = Pipeline(dataset="sleep", prep_ms=10, steps=20, seconds=None)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    """Runs of this file share a folder with no other's."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("home")))


def played(speed=0.5):
    """Return a panel of a pipeline whose runs are played from a record, `speed` times as fast."""
    shown = lk.panel(QUICK, ["num_workers", "prefetch_factor"])
    record = lk.recorded(f"{XEON}/workers-6")
    shown.launch = lambda asked: play(record.path, speed)
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
    assert (
        "start again when it is over" in said and f"in a terminal with kill {os.getpid()}" in said
    )
    assert not any(re.search(pattern, said) for pattern in REMEDIES)  # which press buttons


# -- controls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOBS)
def test_a_control_holds_its_knobs_default_and_cannot_send_what_the_knob_refuses(name):
    knob = KNOBS[name]
    control = Control(knob, knob.default)
    assert control.value == knob.default and type(control.value) is type(knob.default)
    assert knob.help in control.widget.tooltip and knob.name in control.children[0].value
    widget = control.widget
    if hasattr(widget, "options"):
        values = [value for _, value in widget.options]
    else:
        values = [widget.min, widget.max] if hasattr(widget, "min") else [False, True]
    for value in values:
        widget.value = value
        knob.check(control.value)


# -- what each kind of panel asks for ------------------------------------------------------------


def test_a_panel_starts_from_a_pipeline_and_follows_its_controls():
    shown = lk.panel(QUICK, knobs=["num_workers", "prefetch_factor"], batch_size=8)
    assert shown.asked == QUICK.but(batch_size=8)
    shown.controls["num_workers"].value = 3
    assert shown.asked.num_workers == 3 and shown.run is None
    text = shown._repr_mimebundle_()["text/plain"]  # for a viewer without widgets
    assert text == "labkit panel for num_workers, prefetch_factor"
    assert repr(shown).startswith(text)
    with pytest.raises(ValueError, match="did you mean 'num_workers'"):
        lk.panel(knobs=["num_worker"])


def test_a_panel_of_ranks_asks_for_what_its_controls_say():
    shown = lk.panel(Distributed(QUICK.but(batch_size=8)))
    shown.controls["ranks"].value = 3
    shown.controls["io_ms of rank 1"].value = 2
    wanted = shown.asked
    assert (wanted.ranks, wanted.pipeline.batch_size) == (3, 8)
    assert wanted.starve == {1: {"io_ms": 2}}
    shown.controls["ranks"].value = 1  # there is no rank 1 to starve
    assert "use ranks 0 to 0" in shown.verdict.value


# -- what a slider would bring, and the list of runs ---------------------------------------------


def with_runs(*names):
    """Return a panel of the default pipeline in which these recorded runs have ended."""
    shown = lk.panel(Pipeline(), ["num_workers", "prefetch_factor", "io_ms", "batch_size"])
    for run in map(load_recorded, names):
        shown.launch = lambda asked, run=run: run
        shown.controls["num_workers"].value = run.asked.num_workers
        shown._show(*shown._begin())
    return shown


def load_recorded(name):
    return lk.load(lk.recorded(f"{XEON}/{name}").path)


def test_a_moved_slider_says_what_to_expect_and_a_run_how_right_that_was():
    shown = with_runs()
    assert "Run once" in shown.bars.value
    shown = with_runs("workers-0")
    assert "Move a slider" in shown.bars.value
    shown.controls["num_workers"].value = 6
    found = lk.predict(shown.run, num_workers=6)
    low, high = found.throughput_range
    assert f"{found.throughput:,.0f} ({low:,.0f} to {high:,.0f})" in shown.bars.value
    assert shown.view.expected[1] == found.utilization and "came" not in shown.bars.value
    shown.launch = lambda asked: load_recorded("workers-6")
    came, _ = shown._begin()
    shown._show(came, shown.runs[0])
    said = f"Predicted {found.throughput:,.0f}, came {came.throughput:,.0f} samples/s"
    assert said in shown.bars.value and shown.bars.value.count("class='came'") == 3
    shown.controls["batch_size"].value = 256
    assert "No prediction: the effect of batch_size was not measured" in shown.bars.value
    shown.controls["num_workers"].value = 0
    shown.controls["prefetch_factor"].value = 4
    assert "labkit-old" in shown.bars._dom_classes


def test_a_starved_run_is_told_what_a_perfect_loader_would_give_and_a_fed_one_is_not():
    starved = load_recorded("workers-0")
    waits = starved.diagnose().findings[0].lost_share
    perfect = starved.throughput / (1 - waits)
    assert f"\nWith a perfect loader: about {perfect:,.0f} samples/s." in panels.run_verdict(
        starved
    )
    assert "perfect loader" not in panels.run_verdict(load_recorded("batch-256"))


def test_the_list_keeps_the_last_runs_and_compares_with_the_pinned_one():
    shown = with_runs("workers-0", *["workers-6"] * 9)
    listed = shown.history.rows
    history = shown.history
    assert [row["name"] for row in listed[:2]] == ["num_workers 6"] * 2 and len(listed) == 8
    assert listed[0]["verdict"] == "input" and "samples/s, CPU busy 7" in listed[0]["numbers"]
    history.pin(listed[-1]["key"])
    assert history.pinned == ("num_workers 6", shown.runs[2])
    assert "Against the pinned run (num_workers 6)" in shown.comparison.value
    shown._show(*shown._begin())
    assert history.rows[-1]["pinned"] and len(history.rows) == 9  # it stays
    history.pin(listed[-1]["key"])
    assert history.pinned is None
    history.pin(-1)  # it has left the list


def test_a_cell_takes_a_panels_run_or_measures_it_there():
    shown = with_runs("workers-0")
    assert shown.run_of(num_workers=0) is shown.runs[0]
    stops = []

    def launch(asked):
        button = shown.stop_button  # nothing is heard while a cell waits
        stops.append(button.disabled and "interrupt the kernel" in button.tooltip)
        return load_recorded("workers-6")

    shown.launch = launch
    assert shown.run_of(num_workers=6).pipeline.num_workers == 6 and len(shown.runs) == 2
    assert stops == [True]
    assert shown.controls["num_workers"].value == 6 and not shown.run_button.disabled
    assert "(num_workers 0 → 6): CPU busy 14% → 74%. 4.95x faster" in shown.comparison.value
    with pytest.raises(ValueError, match="did you mean 'num_workers'"):
        shown.run_of(num_worker=6)


def test_the_next_kernel_lists_the_runs_of_this_one_and_compares_with_them(monkeypatch):
    monkeypatch.setattr(history, "in_notebook", lambda: True)
    before = with_runs("workers-0", "workers-6")
    after = with_runs("workers-2")  # a panel of the same knobs in the same notebook
    newest, six, none = after.history.rows
    assert newest["name"] == "num_workers 2" and six["numbers"].startswith("1302 samples/s")
    after.history.pin(none["key"])
    assert after.history.pinned[1].throughput == before.runs[0].throughput
    assert after.view.overlay and "Against the pinned run (as it opened)" in after.comparison.value
    assert len(with_runs().history.rows) == 3
    assert lk.panel(Pipeline(), ["io_ms"]).history.rows == []  # another panel


def test_improve_shows_every_step_of_the_autopilot_and_sets_the_best_knobs(monkeypatch):
    start, best = (
        load_recorded("workers-0"),
        load_recorded("workers-6"),
    )
    tried = [
        Trial({"num_workers": 0}, rates=[start.throughput], runs=[start], judgement=START),
        Trial({"num_workers": 6}, changes={"num_workers": 6}, rates=[best.throughput], runs=[best]),
    ]

    class Climb:
        found = Ladder("pipeline", {"num_workers": 0}, Pipeline(), tried=tried)

        def tell(self, judged, running):
            self.judged = judged
            self.running = running

        def run(self):
            self.running(start)
            self.judged()
            shown.stop()  # pressed while the second run goes on
            with pytest.raises(KeyboardInterrupt):
                self.running(best)
            tried[1].judgement = KEPT
            self.found.stopped = "interrupted: this is the best so far"
            return self.found

    async def scenario():
        shown.improve()
        assert shown.running and shown.improve_button.disabled
        await ended(shown)
        assert shown.controls["num_workers"].value == 6 and not shown.improve_button.disabled
        assert "4.95x the start" in shown.comparison.value
        assert "done: interrupted" in shown.verdict.value
        assert [row["name"] for row in shown.history.rows] == ["num_workers=6", "start"]

    monkeypatch.setattr(panels, "improver", lambda *_: Climb())
    shown = lk.panel(Pipeline(), ["num_workers"])
    asyncio.run(scenario())


def test_what_a_panel_shows_can_be_copied_as_code():
    shown = with_runs("workers-0")
    names = SimpleNamespace(run=lambda p: p, Pipeline=Pipeline)
    assert shown.clipboard.texts["PyTorch"]() == str(lk.script(shown.run))
    shown.controls["num_workers"].value = 4
    text = shown.clipboard.texts["labkit"]()
    assert eval(text, {"lk": names}) == Pipeline(num_workers=4)
    shown.controls["num_workers"].value = 0
    shown.controls["prefetch_factor"].value = 4
    with pytest.raises(ValueError, match="needs loader workers"):
        shown.clipboard.texts["PyTorch"]()


# -- run, follow, stop ---------------------------------------------------------------------------


def test_knobs_that_do_not_go_together_are_explained_and_start_nothing():
    async def scenario():
        shown = played()
        shown.controls["prefetch_factor"].value = 4
        assert "prefetch_factor 4 needs loader workers" in shown.verdict.value
        assert "leave prefetch_factor auto" in shown.verdict.value and shown.run_button.disabled
        shown.start()
        assert not shown.running and shown.runs == []
        shown.controls["num_workers"].value = 1
        assert "go together again" in shown.verdict.value and not shown.run_button.disabled

    asyncio.run(scenario())


@pytest.mark.parametrize("what", [QUICK, Distributed(QUICK)])
def test_outside_a_notebook_run_says_what_to_do_instead(what):
    shown = lk.panel(what)
    shown.run_button.click()
    assert f"use {shown.terminal}" in shown.verdict.value
    assert not shown.run_button.disabled


def test_ten_presses_of_run_start_one_run_stop_ends_it_and_the_kernel_stays_free():
    """JupyterLab delivers presses in a subshell's thread, but early ones in the main thread."""

    async def scenario():
        shown = played(speed=0.1)
        beats = 0

        async def heart():
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        async def press_ten_times():
            for _ in range(5):
                shown.start()
                await asyncio.to_thread(shown.run_button.click)

        pulse = asyncio.create_task(heart())
        workers = shown.controls["num_workers"].widget
        await asyncio.to_thread(setattr, workers, "value", 3)
        await press_ten_times()
        await until(lambda: shown.view.tick >= 3)
        await press_ten_times()
        assert beats > 5 and "labkit-old" in shown.verdict._dom_classes  # it is not this run's
        assert shown.session.task.get_loop() is asyncio.get_running_loop()
        await asyncio.to_thread(shown.stop_button.click)
        await ended(shown)
        pulse.cancel()
        assert [run.outcome for run in shown.runs] == ["stopped"]
        assert "labkit-old" not in shown.verdict._dom_classes
        assert not shown.view.running and shown.view.status.startswith("stopped")
        assert shown.view.drawn_steps == shown.run.steps and "RECORDED" in shown.view.badge

    asyncio.run(scenario(), debug=True)  # in which a loop refuses what is not thread-safe


@pytest.mark.parametrize("how", ["drawing breaks", "the panel is closed"])
def test_no_run_is_left_behind_when(how, monkeypatch):
    async def scenario():
        shown = played()
        if how == "drawing breaks":
            monkeypatch.setattr(shown.view, "update", lambda run: {}["<canvas>"])
        shown.start()
        if how == "the panel is closed":
            await until(lambda: shown.view.tick > 0)
            shown.close()
        await asyncio.wait_for(shown.session.task, 120)
        assert shown.run.outcome == "stopped" and not shown.run.running
        if how == "drawing breaks":
            assert "KeyError: &#x27;&lt;canvas&gt;&#x27;" in shown.verdict.value

    asyncio.run(scenario())
