"""The autopilot: what it may try, what it keeps, when it stops, and what it says of the rest."""

import json

import labkit as lk
from labkit.analysis import rules
from labkit.analysis.facts import CLASSES, Evidence, Facts

IN_WORDS = {"compile": "torch.compile", "precision": "bf16", "batch_size": "larger batch"}


def every_finding():
    """Yield what every rule says of the recorded runs, and of a few made-up facts of a GPU."""
    for entry in lk.recorded():
        run = lk.recorded(entry.name)
        if hasattr(run, "stamps") and run.steps > 2:
            yield from rules.losses(Evidence(run).facts())[0]
    shares = dict.fromkeys(CLASSES, 0.2)
    for knobs in ({}, {"num_workers": 0}, {"num_workers": 2, "pin_memory": True}):
        yield from rules.losses(Facts("gpu", shares=shares, knobs=knobs, stalls=0.9))[0]


def test_what_a_finding_advises_and_what_a_program_would_change_are_the_same():
    found = [finding for finding in every_finding() if finding.remedies]
    knobs = {knob for finding in found for remedy in finding.remedies for knob in remedy.changes}
    assert knobs >= {"num_workers", "compile", "pin_memory", "batch_size", "fused_optimizer"}
    for finding in found:
        for remedy in finding.remedies:
            for knob in remedy.changes:
                assert IN_WORDS.get(knob, knob) in finding.advice
            assert 1 <= remedy.gain[0] <= remedy.gain[1]
            lk.Pipeline(num_workers=1).but(**remedy.changes)  # each is a knob, and allowed
        assert json.dumps(finding.to_dict()["remedies"])
