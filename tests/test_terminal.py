"""The command line: --json prints one object, errors are one line, exit codes tell."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from labkit.__main__ import main
from labkit.terminal import COMMANDS, PARSER

slow = pytest.mark.slow
QUICK = ("--set", "dataset=sleep", "--set", "prep_ms=2", "--set", "model=mlp", "--set", "steps=20")


def test_importing_labkit_loads_no_torch():
    code = "import sys, labkit; labkit.Pipeline; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@slow
def test_run_prints_its_statistics_as_one_json_object(labkit_command, tmp_path, capsys):
    figure, record = tmp_path / "run.png", tmp_path / "run.jsonl"
    home = {"cwd": tmp_path, "env": os.environ | {"LABKIT_HOME": "cache"}}  # relative to here
    done = labkit_command("run", *QUICK, "--json", "--plot", figure, "--save", record, **home)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "cache" / "runs").iterdir())) == 1
    numbers = json.loads(done.stdout)
    names = "outcome error machine pipeline not_applied utilization throughput step_ms wait_ms"
    assert set(names.split()) <= set(numbers)
    assert numbers["outcome"] == "finished" and 0 < numbers["utilization"] <= 1
    assert {"device", "kind", "memory_gib", "cpu_cores", "versions"} <= set(numbers["machine"])
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["diagnose", str(record), "--json"]) == 0
    assert {"bottleneck", "confidence", "findings"} <= set(json.loads(capsys.readouterr().out))


@slow
def test_a_sweep_prints_a_list_of_runs_and_one_that_fails_is_exit_code_1(capsys):
    over = ("--over", "device=cpu", "--over", "device=cuda:42")
    assert main(["sweep", *QUICK, *over, "--json"]) == 1
    said = capsys.readouterr()
    assert [run["outcome"] for run in json.loads(said.out)] == ["finished", "failed"]
    assert "cuda:42" in said.err and "Traceback" not in said.err


@slow
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs Linux or macOS")
def test_distributed_prints_its_ranks_as_one_json_object(capsys, tmp_path):
    record = str(tmp_path / "ranks.jsonl.gz")
    asked = ("--set", "device=cpu", *QUICK, "--baseline", "--json", "--save", record)
    assert main(["distributed", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "finished" and len(found["ranks"]) == 2
    assert found["efficiency"] > 0 and found["speedup"] == pytest.approx(2 * found["efficiency"])
    assert {"times", "diagnosis", "communication_share", "loss", "machine"} <= set(found)
    assert main(["diagnose", record, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["bottleneck"] == found["diagnosis"]["bottleneck"]


def test_every_command_explains_itself_and_each_of_its_options():
    text = PARSER.format_help()
    assert "labkit run --set" in text and "exit code" in text
    for name, sub in COMMANDS.choices.items():
        assert name in text and sub.description and "--json" in sub.format_help()
        assert all(action.help for action in sub._actions)
        examples = re.findall(rf"^  (labkit {name} .*)", sub.epilog, re.M)
        for example in examples:
            words = shlex.split(re.split(r"\s{2,}| \| | && | > ", example)[0])[1:]
            PARSER.parse_args(words)  # exits where it does not take them
        assert examples or name in ("machine", "record", "bench-self")


@pytest.mark.parametrize(
    "line",
    [
        "run --set num_workers=lots", "run --set prefetch_factor=2", "run --set speed=11",
        "sweep --over num_workers", "sweep --over batch_size=8,16 --devices cuda:0,cuda:0",
        "distributed --ranks 0", "distributed --starve 5:io_ms=1",
        "distributed --starve io_ms=1", "distributed --nnodes two",
        "distributed --set device=cuda:1", "trace no-such-file.json",
        "diagnose no-such-record.jsonl", "faults --only no_such_fault",
        "tune --collate module:name", "watch",
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(line, capsys):
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("labkit: ") and said.err.count("\n") == 1


def test_an_interrupt_prints_the_best_so_far_and_is_exit_code_130(monkeypatch, capsys):
    class Best(list):
        winner, to_dict = 1, lambda self: {"best": 1}

    def tune(*_arguments, **_more):
        raise KeyboardInterrupt

    tune.last = Best()
    monkeypatch.setattr("labkit.tune", tune, raising=False)
    assert main(["tune", "--json"]) == 130
    assert json.loads(capsys.readouterr().out) == {"best": 1}
