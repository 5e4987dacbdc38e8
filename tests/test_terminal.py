"""The command line: --json prints one object, errors are one line, exit codes tell."""

import argparse
import json
import re
import shlex
import subprocess
import sys

import pytest

import labkit.__main__  # noqa: F401 -- registers the commands

QUICK = ("--set", "dataset=sleep", "--set", "prep_ms=2", "--set", "model=mlp", "--set", "steps=20")


def test_importing_labkit_loads_no_torch():
    code = "import sys, labkit; labkit.Pipeline; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_prints_its_statistics_as_one_json_object(labkit_command, tmp_path):
    figure, record = tmp_path / "run.png", tmp_path / "run.jsonl"
    done = labkit_command("run", *QUICK, "--json", "--plot", figure, "--save", record)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    names = "outcome error machine pipeline not_applied utilization throughput step_ms wait_ms"
    assert set(names.split()) <= set(numbers)
    assert numbers["outcome"] == "finished" and 0 < numbers["utilization"] <= 1
    assert figure.read_bytes().startswith(b"\x89PNG") and record.exists()


def test_sweep_prints_a_list_of_runs(labkit_command):
    done = labkit_command("sweep", *QUICK, "--over", "batch_size=8,16", "--json")
    assert done.returncode == 0, done.stderr
    assert [run["pipeline"]["batch_size"] for run in json.loads(done.stdout)] == [8, 16]


def test_machine_tells_what_is_here(labkit_command):
    done = labkit_command("machine", "--json")
    found = json.loads(done.stdout)
    assert {"device", "kind", "memory_gib", "cpu_cores", "versions"} <= set(found)
    assert found["kind"] in ("cpu", "gpu") and found["cpu_cores"] >= 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--set", "num_workers=lots"),
        ("run", "--set", "prefetch_factor=2"),
        ("run", "--set", "speed=11"),
        ("sweep", "--over", "num_workers"),
        ("dance",),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(labkit_command, arguments):
    done = labkit_command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_run_that_fails_is_exit_code_1(labkit_command):
    done = labkit_command("run", *QUICK, "--set", "device=cuda:42", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "failed"
    assert "cuda:42" in done.stderr and "Traceback" not in done.stderr


def commands():
    """Every command's parser, by name."""
    from labkit.terminal import parser

    (found,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return found.choices


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_explains_itself_and_each_of_its_options(name):
    command = commands()[name]
    text = command.format_help()
    assert command.description and "--json" in text
    options = [a for a in command._actions if a.option_strings and a.dest != "help"]
    silent = [a.option_strings[0] for a in options if not a.help]
    assert not silent, f"labkit {name}: say what {silent} do"
    assert max(map(len, text.splitlines())) <= 200


def test_help_lists_every_command_and_how_to_begin():
    from labkit.terminal import parser

    text = parser().format_help()
    assert all(name in text for name in commands())
    assert "labkit run --set" in text and "exit code" in text


@pytest.mark.parametrize("name", ["run", "sweep", "trace", "diagnose", "faults", "distributed"])
def test_the_help_shows_examples_that_the_command_line_takes(name):
    from labkit.terminal import parser

    lines = commands()[name].epilog.splitlines()
    examples = [line.strip() for line in lines if line.startswith(f"  labkit {name} ")]
    assert examples
    for example in examples:
        words = shlex.split(re.split(r"\s{2,}| \| | && | > ", example)[0])[1:]
        parser().parse_args(words)  # exits where it does not take them


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs Linux or macOS")
def test_distributed_prints_its_ranks_as_one_json_object(labkit_command, tmp_path):
    figure, record = tmp_path / "ranks.png", tmp_path / "ranks.jsonl.gz"
    files = ("--plot", figure, "--save", record)
    quick = ("--set", "device=cpu", *QUICK)
    done = labkit_command("distributed", *quick, "--baseline", "--json", *files)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] == "finished" and len(found["ranks"]) == 2
    assert found["efficiency"] > 0 and found["speedup"] == pytest.approx(2 * found["efficiency"])
    assert {"times", "diagnosis", "communication_share", "loss", "machine"} <= set(found)
    assert figure.read_bytes().startswith(b"\x89PNG") and record.exists()
    again = labkit_command("diagnose", record, "--json")
    assert json.loads(again.stdout)["bottleneck"] == found["diagnosis"]["bottleneck"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("distributed", "--ranks", "0"),
        ("distributed", "--starve", "5:io_ms=1"),
        ("distributed", "--starve", "io_ms=1"),
        ("distributed", "--nnodes", "two"),
        ("distributed", "--set", "device=cuda:1"),
        ("sweep", "--over", "batch_size=8,16", "--devices", "cuda:0,cuda:0"),
        ("trace", "no-such-file.json"),
        ("diagnose", "no-such-record.jsonl"),
        ("faults", "--only", "no_such_fault"),
        ("watch",),
    ],
)
def test_bad_input_to_any_command_is_told_in_a_line_with_exit_code_2(labkit_command, arguments):
    done = labkit_command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr and done.stderr.strip()
