"""Records, knobs, names and pages from hostile hands: one clear error, or numbers, and no code.

And keys of services: they come from the environment and are in nothing that is stored.
"""

import ast
import contextlib
import copy
import gzip
import io
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
from labkit.__main__ import main
from labkit.diagnosis.trace_file import TraceError
from labkit.process import device_lock, keys
from labkit.results import record
from labkit.results.hardware import Machine
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.results.wall_shares import WallShares

PACKAGE = Path(lk.__file__).parent
SCRIPT = "<script>alert(1)</script>"
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


# A real record, and what it has none of: of a GPU, of a watched loop, of what goes wrong
WHOLE = record.read_record(next(e.path for e in lk.recorded() if e.name == "workers-2"))
WHOLE[0] |= {"run": SCRIPT, "watched": {"loader": SCRIPT}}
WHOLE[1] |= {"name": SCRIPT, "kind": "gpu", "device": SCRIPT}
WHOLE[4:4] = [
    {"event": "stage", "name": SCRIPT, "done": 1, "total": 2},
    {"event": "epoch", "step": 30},
    {"event": "compiled", "seconds": 1.5},
    {"event": "no_xray", "why": SCRIPT},
    {"event": "surprise", "anything": {}},
    {"event": "error", "kind": SCRIPT, "message": SCRIPT, "workers": {"7": -9}, "files": [1, 2]},
]
LIKE = {
    int: st.integers(0, 40) | st.integers(-(2**61), 2**61),
    float: st.floats(-1e9, 1e9) | st.sampled_from([0.0, 1e300, -1e-300]),
    str: st.sampled_from([SCRIPT, "", "\n", "x" * 300]),
}


def change(events, draw):
    """Put another value, mostly of the same type, in the place of one somewhere in the events."""
    place = draw(st.sampled_from(events))
    key = draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], (list, dict)) and place[key] and draw(st.booleans()):
        place = place[key]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    like = LIKE.get(type(place[key]), junk)
    place[key] = draw(st.one_of(like, like, like, junk))


@given(st.data())
def test_a_record_with_anything_in_it_is_refused_or_gives_numbers(tmp_path_factory, data):
    steps = data.draw(st.sampled_from([0, 1, 30, 80]))
    events = [copy.deepcopy(e) for e in WHOLE if e["event"] != "step" or e["i"] < steps]
    if data.draw(st.booleans()):
        del events[0]["watched"]
    for _ in range(data.draw(st.integers(1, 4))):
        change(events, data.draw)
    file = tmp_path_factory.getbasetemp() / "hostile.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    try:
        run = lk.load(file)
        if not isinstance(run, Run):  # it says now that it is one of ranks, or an experiment
            assert repr(run) and json.dumps(run.to_dict(), allow_nan=False)
            return
        shown = [repr(run), str(run.diagnose()), json.dumps(run.to_dict(), allow_nan=False)]
    except lk.RecordError as error:
        assert "\n" not in str(error)
        return
    assert all(shown)
    for thing in (run.machine, run.diagnose(), run.compare(run)):
        assert SCRIPT not in thing._repr_html_()


def test_a_torn_line_is_never_taken_for_an_event_and_costs_no_other(tmp_path):
    """A front of a line, left by a writer that was killed, before the whole line of another."""
    whole = [b'{"event":"step","i":%d,"t":[%d,2,3,4],"n":1,"loss":0.5}' % (i, i) for i in range(3)]
    file = tmp_path / "torn.jsonl"
    for end in range(len(whole[1]) - 1):
        torn = whole[1][:end]
        file.write_bytes(
            whole[0] + b"\n" + torn + whole[2] + b"\n" + torn + b"\n" + whole[1] + b"\n"
        )
        seen = [event["i"] for event in record.Tail(file).read()]
        # the middle one only where its front can be told apart
        assert seen == [0, 2, 1] or (seen == [0, 1] and not torn.startswith(record.HEAD))


def test_parts_of_a_record_that_are_not_sound_are_left_out():
    assert Machine.from_dict({"compute_capability": "sm_90"}).compiles
    assert Machine.from_dict({"compute_capability": "6.1"}).compute_capability == "6.1"
    part = {"part": "training loop", "seconds": 1.0, "share": "half", "place": ""}
    assert WallShares.from_dict({"parts": [part], "seconds": 2.0}) is None
    read = WallShares.from_dict({"parts": [part | {"share": 0.5}], "seconds": 2.0})
    assert read.share("training loop") == 0.5


def test_what_is_no_record_or_unpacks_to_more_than_fits_is_refused(tmp_path, monkeypatch):
    for path in ("/dev/zero", "/proc/self/mem", "/", "", "a\0b", "~", "x" * 5000):
        with pytest.raises(ValueError):
            lk.load(path)
    monkeypatch.setattr(record, "MAX_BYTES", 10_000)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b'{"event":"spec","version":1,"run":"r","pipeline":{}}\n' * 999))
    with pytest.raises(lk.RecordError, match="larger than"):
        lk.load(bomb)


SPEC = b'{"event":"spec","version":1,"run":"r","pipeline":{}}\n'


@pytest.mark.parametrize(
    "line, says",
    [
        (b"\n", "without an event"),
        (b'{"event":"a"}\n', "unpacks to more"),
        (b'{"event":"step","i":0,"t":[0,0,0,0],"n":0}\n', "unpacks to more"),
        (b"[", "line is longer"),
    ],
)
def test_a_small_file_takes_little_memory_and_work_whatever_it_unpacks_to(
    tmp_path, monkeypatch, line, says
):
    monkeypatch.setattr(record, "ROOM", 2**17)  # tracing memory is slow
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(SPEC + line * (2**21 // len(line))))
    tracemalloc.start()
    with pytest.raises(lk.RecordError, match=says):
        lk.load(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24  # as objects the text takes twenty times its size


@pytest.mark.parametrize(
    "line, says",
    [
        (b'{"event":"a%d"}\n', "kinds"),
        (b'{"event":"x","of_rank":%d}\n', "not an event"),
        (b'{"event":"epoch","step":%d}\n', "not steps"),
    ],
)
def test_the_number_and_the_kinds_of_events_are_bounded(tmp_path, monkeypatch, line, says):
    monkeypatch.setattr(record, "MAX_OTHERS", 150)
    file = tmp_path / "many.jsonl"
    file.write_bytes(SPEC + b"".join(line % number for number in range(200)))
    with pytest.raises(lk.RecordError, match=says):
        lk.load(file)


def test_a_step_takes_no_more_memory_than_its_numbers(tmp_path):
    steps = []
    for i in range(20_000):
        asked = 10_000 * i
        t = [asked, asked + 10, asked + 20, asked + 9_000]
        steps.append({"event": "step", "i": i, "t": t, "n": 16, "loss": i / 7})
    file = tmp_path / "steps.jsonl"
    file.write_bytes(SPEC + b"".join(json.dumps(step).encode() + b"\n" for step in steps))
    lk.load(file)  # imports
    tracemalloc.start()
    run = lk.load(file)
    held = tracemalloc.get_traced_memory()[0]
    assert held < 80 * len(steps)  # as objects 1000
    tracemalloc.stop()
    assert run.steps_since(19_998) == steps[19_998:]


def test_a_trace_and_an_archive_of_traces_have_bounds_on_what_they_unpack_to(tmp_path):
    bomb = b'{"traceEvents": [' + b"{}," * 2**21
    packed = tmp_path / "bomb.json.gz"
    packed.write_bytes(gzip.compress(bomb))
    archive = tmp_path / "bomb.tar.gz"
    with tarfile.open(archive, "w:gz") as writing:
        member = tarfile.TarInfo("rank0.json")
        member.size = len(bomb)
        writing.addfile(member, io.BytesIO(bomb))
    for file in (packed, archive):
        with pytest.raises(TraceError, match="unpacks to"):
            lk.trace(file)


def refuse(*_, **__):
    raise ValueError("not in this test")


@given(st.lists(st.text(max_size=12) | st.sampled_from(["run", "--set", "--json"]), max_size=4))
def test_a_command_line_of_anything_never_shows_a_traceback(words):
    error = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
        pytest.MonkeyPatch.context() as patch,  # nothing that it names is really run
    ):
        for name in ("run", "sweep", "machine", "trace", "diagnose", "tune", "measure"):
            patch.setattr(lk, name, refuse, raising=False)
        patch.setattr("labkit.results.launch.launch", refuse)
        patch.setattr("subprocess.Popen", refuse)
        try:
            code = main(words)
        except SystemExit as exit:
            code = exit.code
    assert code in (0, 1, 2) and "Traceback" not in error.getvalue()


AWAY = ("../secret", "x/../../secret", "/etc/passwd", "../../../etc/cron.d/x", "a/b/c", ".", "\0")


@given(st.text(min_size=1, max_size=60) | st.sampled_from(AWAY))
def test_a_name_stays_inside_its_folder(tmp_path_factory, name):
    root = tmp_path_factory.getbasetemp()
    (root / "secret.jsonl").write_text('{"event":"spec","version":1,"run":"r","pipeline":{}}\n')
    (root / "records").mkdir(exist_ok=True)
    for text in (name, f"../{name}", str(root / "secret")):
        with pytest.raises((ValueError, LookupError)):
            lk.recorded(text, folder=root / "records")
    os.close(device_lock.hold(root, name, "", waiting=lambda text: None))
    (made,) = (root / "locks").iterdir()
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,160}\.lock", made.name)
    made.unlink()


def is_bare(part):
    """Whether a part of a template is data: not escaped before, not formatted as a number."""
    if re.search(r"[%fgd]'?$", ast.unparse(part.format_spec) if part.format_spec else ""):
        return False
    if isinstance(part.value, ast.Call):
        return ast.unparse(part.value.func) in ("str", "repr", "getattr", "format")
    return isinstance(part.value, ast.Attribute | ast.Subscript) or bool(part.conversion > 0)


# What the user wrote in the notebook (a dataset, a step, an answer) goes to their own bench and
# its workers: once, through a file in the run's folder that is deleted. Nothing comes back so.
MAY_PICKLE = {
    "results/payload.py",  # only writes, to processes that this one starts
    "bench/by_value.py",  # only writes, to workers that this process starts
    "bench/user_parts.py",
    "bench/measure.py",
}
PICKLES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "yaml"}
NEVER = {"eval", "exec", "compile", "__import__", "os.system"}
SAFELY = {"torch.load": ("weights_only", "True"), "np.load": ("allow_pickle", "False")}


def test_nothing_in_the_package_runs_what_it_reads_or_fills_html_with_it_as_it_is():
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert name in MAY_PICKLE or not PICKLES & {n.split(".")[0] for n in names}, name
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                keywords = {k.arg: k.value for k in node.keywords}
                assert called not in NEVER and "shell" not in keywords, (name, node.lineno)
                if called in SAFELY:
                    keyword, safe = SAFELY[called]
                    assert ast.unparse(keywords[keyword]) == safe, (name, node.lineno)
            elif isinstance(node, ast.JoinedStr):
                fixed = [str(p.value) for p in node.values if isinstance(p, ast.Constant)]
                if any(re.search(r"</?[a-z]+[ >]", text) for text in fixed):
                    filled = [p for p in node.values if isinstance(p, ast.FormattedValue)]
                    assert not [ast.unparse(p.value) for p in filled if is_bare(p)], name


WANDB_KEY = "0123456789abcdef0123456789abcdef01234567"
PATTERNS = [
    r"(?i)wandb[^\n]{0,40}\b[0-9a-f]{40}\b",
    r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}\b)",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"(?i)\b(api_?key|token|secret)\b[\"']?\s*[:=]\s*[\"'][0-9a-f]{32,}[\"']",
]


@pytest.mark.slow
def test_the_process_that_logs_is_given_the_key(tiny, monkeypatch):
    key = WANDB_KEY
    monkeypatch.setenv("WANDB_API_KEY", key)
    code = "import os; open('keys.txt', 'w').write(os.environ.get('WANDB_API_KEY', 'none'))"
    run = launch(tiny, after=[sys.executable, "-c", code]).wait()
    told = run.path / "keys.txt"
    wait_until(lambda: told.exists() and told.read_text() == key)
    assert key not in (run.path / "events.jsonl").read_text()


@pytest.mark.slow
def test_no_key_lies_in_the_repository_a_notebooks_stored_output_or_a_record():
    root = PACKAGE.parent
    ends = keys.KEY_ENDINGS
    git = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(git, cwd=root, capture_output=True, text=True).stdout.splitlines()
    secrets = [v for name, v in os.environ.items() if name.upper().endswith(ends) and len(v) > 15]
    for file in [root / name for name in listed] or root.rglob("*"):
        if not file.is_file() or file.suffix in (".png", ".pyc", ".jpg"):
            continue
        data = gzip.open(file).read() if file.suffix == ".gz" else file.read_bytes()
        text = data.decode(errors="replace")
        assert not any(secret in text for secret in secrets), file
        if file != Path(__file__):
            assert not [pattern for pattern in PATTERNS if re.search(pattern, text)], file
