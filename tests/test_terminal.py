"""The command line: --json prints one object, errors are one line, exit codes tell."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from test_trace import STEP, kernel

from labkit.__main__ import COMMANDS, PARSER, main
from labkit.text import STEERS
from labkit.view import display


@pytest.mark.slow
@pytest.mark.parametrize(
    "begins, without",
    [
        ("import labkit; labkit.Pipeline", "torch numpy"),
        ("import labkit.view.live, labkit.view.panel", "torch"),
        ("import labkit.view.watch_command", "torch matplotlib pandas"),  # the user's script waits
    ],
)
def test_what_is_not_needed_yet_is_not_loaded(begins, without):
    code = f"import sys; {begins}\nassert not set('{without}'.split()) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_run_prints_its_statistics_as_one_json_object(labkit_command, tmp_path, capsys):
    quick = "--set", "dataset=sleep", "prep_ms=2", "--set", "model=mlp", "steps=20", "xray=false"
    home = os.environ | {"LABKIT_HOME": "cache"}  # relative to here
    done = labkit_command("run", *quick, "--json", cwd=tmp_path, env=home)
    assert done.returncode == 0, done.stderr
    [folder] = tmp_path.glob("cache/runs/*")
    numbers = json.loads(done.stdout)
    assert numbers["pipeline"]["steps"] == 20 and numbers["outcome"] == "finished"
    assert 0 < numbers["utilization"] <= 1 and numbers["machine"]["cpu_cores"]
    assert main(["diagnose", str(folder), "--json"]) == 0
    assert {"bottleneck", "confidence", "findings"} <= set(json.loads(capsys.readouterr().out))


def test_every_command_explains_itself_and_each_of_its_options():
    text = PARSER.format_help()
    assert "labkit run --set" in text and "exit code" in text
    names = ["diagnose", "lab", "machine", "run", "trace", "tune", "watch"]
    assert sorted(COMMANDS.choices) == names
    for name, sub in COMMANDS.choices.items():
        assert name in text and sub.description and "--json" in sub.format_help()
        assert all(action.help for action in sub._actions)
        examples = re.findall(rf"^  (labkit {name} .*)", sub.epilog, re.M)
        for example in examples:
            words = shlex.split(re.split(r"\s{2,}| \| | && | > ", example)[0])[1:]
            PARSER.parse_args(words)  # exits where it does not take them
        assert examples or name == "machine"


@pytest.mark.parametrize(
    "line",
    [
        "run --set num_workers=lots",
        "trace no-such-file.json",
        "diagnose no-such-record.jsonl",
        "tune",
        "watch",
        "watch -- no-such-command",
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line, capsys):
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("labkit: ") and said.err.count("\n") == 1


STEERING = "\x1b]0;x\x07\x1b[2J\r\x7f\x9b1m\u202e\u2066"


def test_nothing_that_a_terminal_obeys_is_printed_whatever_names_a_file_has(tmp_path, capsys):
    """From the name of a file or a canvas; what stands in files is in test_hostile.py."""
    trace = tmp_path / f"{STEERING}.json"
    trace.write_text(json.dumps([STEP, kernel(1, 1, 9)]))
    assert main(["trace", str(trace)]) == 0
    assert main(["diagnose", f"{STEERING}.jsonl"]) == 2
    display.Display().final(STEERING)
    said = capsys.readouterr()
    assert "\\x1b" in said.out and "\\x1b" in said.err
    assert not STEERS.search(said.out + said.err)
