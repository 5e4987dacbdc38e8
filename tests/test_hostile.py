"""Records, knobs, names and pages from hostile hands: one clear error, or numbers, and no code.

And keys of services: they come from the environment and are in nothing that is stored.
"""

import ast
import copy
import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import wait_until

import labkit as lk
from labkit.diagnosis.trace_file import TraceError
from labkit.process import device_lock, keys
from labkit.results import record
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.results.wall_shares import WallShares

PACKAGE = Path(lk.__file__).parent
SCRIPT = "<script>alert(1)</script>"
SPEC = b'{"event":"spec","version":1,"run":"r","pipeline":{}}\n'
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


# A real record, and what it has none of: of a GPU, of a watched loop, of what goes wrong
WHOLE = record.read_record(next(e.path for e in lk.recorded() if e.name == "workers-2"))
WHOLE[0] |= {"run": SCRIPT, "watched": {"loader": SCRIPT}}
WHOLE[1] |= {"name": SCRIPT, "kind": "gpu", "device": SCRIPT, "compute_capability": "sm_90"}
WHOLE[4:4] = [
    {"event": "epoch", "step": 30},
    {"event": "no_xray", "why": SCRIPT},
    {"event": "surprise", "anything": {}},
    {"event": "error", "kind": SCRIPT, "message": SCRIPT, "workers": {"7": -9}, "files": [1, 2]},
]
LIKE = {
    int: st.integers(0, 40) | st.integers(-(2**61), 2**61),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text() | st.just(SCRIPT),
}


def places(part):
    """Yield every (container, key) of a value, however deep."""
    for key in part if isinstance(part, dict) else range(len(part)):
        yield part, key
        if isinstance(part[key], (dict, list)):
            yield from places(part[key])


@pytest.mark.slow
@given(st.data())
def test_a_record_with_anything_in_it_is_refused_or_gives_numbers(tmp_path_factory, data):
    steps = data.draw(st.sampled_from([0, 1, 30, 80]))
    events = [copy.deepcopy(e) for e in WHOLE if e["event"] != "step" or e["i"] < steps]
    if data.draw(st.booleans()):
        del events[0]["watched"]
    for event in data.draw(st.lists(st.sampled_from(events), min_size=1, max_size=4)):
        part, key = data.draw(st.sampled_from(list(places(event))))
        like = LIKE.get(type(part[key]), junk)  # mostly of the same type
        part[key] = data.draw(st.one_of(like, like, like, junk))
    file = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    try:
        found = lk.load(file)  # it may say now that it is one of ranks, or an experiment
        assert repr(found) and json.dumps(found.to_dict(), allow_nan=False)
        if isinstance(found, Run):
            verdict = found.diagnose()
            assert str(verdict)
            for page in (found.machine, verdict, found.compare(found)):
                assert SCRIPT not in page._repr_html_()
    except lk.RecordError as error:
        assert "\n" not in str(error)


def test_a_torn_line_is_never_taken_for_an_event_and_costs_no_other(tmp_path):
    """A front of a line, left by a writer that was killed, before the whole line of another."""
    whole = [b'{"event":"step","i":%d,"t":[%d,2,3,4],"n":1,"loss":0.5}' % (i, i) for i in range(3)]
    file = tmp_path / "torn.jsonl"
    for end in range(len(whole[1]) - 1):
        torn = whole[1][:end]
        file.write_bytes(b"\n".join([whole[0], torn + whole[2], torn, whole[1], b""]))
        seen = [event["i"] for event in record.Tail(file).read()]
        # the middle one only where its front can be told apart
        assert seen == [0, 2, 1] or (seen == [0, 1] and not torn.startswith(record.HEAD))


def test_parts_of_a_record_that_are_not_sound_are_left_out():
    part = {"part": "training loop", "seconds": 1.0, "share": "half", "place": ""}
    assert WallShares.from_dict({"parts": [part], "seconds": 2.0}) is None
    read = WallShares.from_dict({"parts": [part | {"share": 0.5}], "seconds": 2.0})
    assert read.share("training loop") == 0.5


def test_what_is_no_record_or_unpacks_to_more_than_fits_is_refused(tmp_path, monkeypatch):
    for path in ("/dev/zero", "/proc/self/mem", "/", "", "a\0b", "x" * 5000):
        with pytest.raises(ValueError):
            lk.load(path)
    monkeypatch.setattr(record, "MAX_BYTES", 10_000)
    large = tmp_path / "large.jsonl"
    large.write_bytes(SPEC * 999)
    with pytest.raises(lk.RecordError, match="larger than"):
        lk.load(large)


@pytest.mark.parametrize(
    "line, says",
    [
        (b"\n", "without an event"),
        (b"[", "line is longer"),
        (b'{"event":"step","i":0,"t":[0,0,0,0],"n":0}\n', "unpacks to more"),
        (b'{"event":"aNUMBER"}\n', "kinds"),
        (b'{"event":"x","of_rank":NUMBER}\n', "not an event"),
        (b'{"event":"epoch","step":NUMBER}\n', "not steps"),
    ],
)
def test_a_small_file_takes_little_memory_and_work_whatever_it_unpacks_to(
    tmp_path, monkeypatch, line, says
):
    for name, most in {"ROOM": 2**17, "MAX_LINE": 2**19, "MAX_OTHERS": 150}.items():
        monkeypatch.setattr(record, name, most)  # tracing memory is slow
    lines = (line.replace(b"NUMBER", b"%d" % n) for n in range(2**20 // len(line)))
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(SPEC + b"".join(lines)))
    tracemalloc.start()
    with pytest.raises(lk.RecordError, match=says):
        lk.load(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23  # as objects the text takes twenty times its size


def test_a_step_takes_no_more_memory_than_its_numbers(tmp_path):
    step = b'{"event":"step","i":%d,"t":[1000,2000,3000,4000],"n":16,"loss":0.7}\n'
    file = tmp_path / "steps.jsonl"
    file.write_bytes(SPEC + b"".join(step % i for i in range(5_000)))
    lk.load(file)  # imports
    tracemalloc.start()
    run = lk.load(file)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert run.steps == 5_000 and held < 80 * run.steps  # as objects 1000


def test_a_trace_and_an_archive_of_traces_have_bounds_on_what_they_unpack_to(tmp_path):
    bomb = b'{"traceEvents": [' + b"{}," * 2**21
    plain = tmp_path / "rank0.json"
    packed = tmp_path / "bomb.json.gz"
    archive = tmp_path / "bomb.tar.gz"
    plain.write_bytes(bomb)
    packed.write_bytes(gzip.compress(bomb))
    with tarfile.open(archive, "w:gz") as writing:
        writing.add(plain, plain.name)
    for file in (packed, archive):
        with pytest.raises(TraceError, match="unpacks to"):
            lk.trace(file)


AWAY = ("../secret", "/etc/passwd", "../../../etc/cron.d/x", "a/b/c", ".", "\0", "x" * 60)


def test_a_lock_stays_inside_its_folder_whatever_its_device_is_called(tmp_path):
    for name in AWAY:
        os.close(device_lock.hold(tmp_path, name, "", waiting=print))
    made = list(tmp_path.rglob("*.lock"))
    assert {path.parent for path in made} == {tmp_path / "locks"}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,160}\.lock", path.name) for path in made)


# What the user wrote in the notebook (a dataset, a step, an answer) goes to their own bench and
# its workers: once, through a file in the run's folder that is deleted. Nothing comes back so.
MAY_PICKLE = {
    "results/payload.py",  # only writes, to processes that this one starts
    "bench/by_value.py",  # only writes, to workers that this process starts
    "bench/user_parts.py",
    "bench/measure.py",
}
PICKLES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "yaml"}
RUNS_CODE = re.compile(
    r"(?<![\w.])(eval|exec|compile|__import__)\([^)]|os\.system\(|shell=|"
    r"(torch|np)\.load\((?!.*(weights_only=True|allow_pickle=False))"
)


def test_nothing_in_the_package_runs_what_it_reads():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
        assert path.relative_to(PACKAGE).as_posix() in MAY_PICKLE or not PICKLES & imported, path
        assert not RUNS_CODE.search(text), path


# What an f-string may have in a page: a name, of what was escaped before; a number; what is ours
FILLED_SAFELY = re.compile(
    r"f.\{(\w+|(html\.escape|int)\(.*|.*\.(to_html|join|replace)\(.*|.*:[^:]*[%fgd])\}."
)


def test_no_html_is_filled_with_data_as_it_is():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr) and re.search(r"</?[a-z]+[ >]", ast.unparse(node)):
                filled = [part for part in node.values if isinstance(part, ast.FormattedValue)]
                for text in (ast.unparse(ast.JoinedStr([part])) for part in filled):
                    assert FILLED_SAFELY.fullmatch(text), (path, text)


@pytest.mark.slow
def test_the_process_that_logs_is_given_the_key(tiny, monkeypatch):
    key = "0123456789abcdef" * 3
    monkeypatch.setenv("WANDB_API_KEY", key)
    code = "import os; open('keys.txt', 'w').write(os.environ.get('WANDB_API_KEY', 'none'))"
    run = launch(tiny, after=[sys.executable, "-c", code]).wait()
    told = run.path / "keys.txt"
    wait_until(lambda: told.exists() and told.read_text() == key)
    assert key not in (run.path / "events.jsonl").read_text()


KEYS = [
    r"(?i:wandb)[^\n]{0,40}\b[0-9a-f]{40}\b",
    r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}\b)",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"\b(?i:api_?key|token|secret)\b[\"']?\s*[:=]\s*[\"'][0-9a-f]{32,}[\"']",
]


@pytest.mark.slow
def test_no_key_lies_in_the_repository_a_notebooks_stored_output_or_a_record():
    root = PACKAGE.parent
    git = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(git, cwd=root, capture_output=True, text=True).stdout.splitlines()
    mine = [value for value in keys.secrets_in(os.environ) if len(value) > 15]
    known = re.compile("|".join([*KEYS, *map(re.escape, mine)]))
    assert listed
    for file in map(root.joinpath, listed):
        if file.is_file() and file.suffix not in (".png", ".jpg"):
            data = gzip.open(file).read() if file.suffix == ".gz" else file.read_bytes()
            assert not known.search(data.decode(errors="replace")), file
