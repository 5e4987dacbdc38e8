"""The command line: --json prints one object, errors are one line, exit codes tell."""

import json
import subprocess
import sys

import pytest

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
