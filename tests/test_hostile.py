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
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_gpu import host_steps, load

import labkit as lk
from labkit import Run
from labkit.diagnosis.loader_code import LoopCode
from labkit.stamps import keys, record
from labkit.text import STEERS

PACKAGE = Path(lk.__file__).parent
SCRIPT = "<script>alert(1)</script>"
SPEC = b'{"event":"spec","version":1,"run":"r","pipeline":{}}\n'
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


# A real record, and what it has none of: of a GPU, of a watched loop, of what goes wrong
WHOLE = list(record.events_of(lk.recorded("workers-2").path))
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


MACHINE = (
    b'{"event":"machine","device":"cpu","kind":"cpu","name":"n","versions":{},"cpu_cores":4}\n'
)
TRACE = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"ProfilerStep#0","ts":0,"dur":300},'
LISTS = b"[],"
EMOJI = "\U0001f600".encode()
MIB = 2**20


def packed(*parts):
    """Return a gzip file of parts that repeat: (bytes, how often)."""
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packing.compress(part) for part, count in parts for _ in range(count)]
    return b"".join([*pieces, packing.flush()])


def tar_of(kind, size):
    header = tarfile.TarInfo("rank0.json")
    header.type = kind
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


# Files that do harm, each with what is said of it; a size makes it longer than what is in it
HOSTILE = {
    "pipe.jsonl": (None, "not a regular file"),
    "sparse.jsonl": ((SPEC, 10**12), "line is longer"),
    "sparse.json": ((TRACE, 10**12), "not valid JSON"),
    "empty.jsonl": (b"", "not a labkit record"),
    "deep.jsonl": (SPEC + b"[" * 100_000 + b"\n", "not an event"),
    "lists.jsonl.gz": (
        packed((SPEC, 1), (b'{"event":"x","a":[' + LISTS * 300_000 + b"[]]}\n", 100)),
        "unpacks to more",
    ),
    "lists.json": (TRACE + b'{"args":[' + LISTS * 3 * MIB + b"[]]}]}", "event of over 1 MiB"),
    "deep.json": (TRACE + b"[" * 2 * MIB, "damaged"),
    "before.json": (b'{"a":[' + LISTS * 3 * MIB + b"[]]," + TRACE[1:], "not a profiler trace"),
    "behind.json": (TRACE[:-1] + b'],"a":[' + LISTS * 3 * MIB + b"[]]}", "behind its events"),
    "malformed.json": (TRACE + b'{"ph":"X","cat":"kernel","name":"k"},' * 10**5, "malformed"),
    "emoji.jsonl": ((SPEC + b'{"event":"x","a":"' + EMOJI, 10**9), "line is longer"),
    "infinite.jsonl": (SPEC + b'{"event":"padding","share":1e999}\n', "not an event"),
    "cut.tar": (tar_of(b"0", 900) + bytes(100), "end of data"),
    "kinds.jsonl": (SPEC + b'{"event":"x"}\n' * 10**6, "more events"),
    "members.json.gz": (gzip.compress(b"") * 10**5, "is empty"),
    "header.jsonl.gz": (b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 9 * MIB, "before the end"),
    "steps.jsonl.gz": (
        packed((SPEC, 1), (b'{"event":"step","i":0,"t":[0,0,0,0],"n":0}\n' * 10**4, 900)),
        "unpacks to more",
    ),
    "long_name.tar": ((tar_of(b"L", 3 * 2**30), 3 * 2**30 + 1024), "a member of 3,221,225,472"),
    "members.tar": (tar_of(tarfile.SYMTYPE, 0) * 50_001, "more than 50,000 members"),
}
READ_THEM = """
import json, pathlib, re, sys, time
import labkit as lk
from labkit.__main__ import main
said = {}
honest = b"[" + b"[]," * 2**20 + b"[]]"
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    began = time.process_time()
    json.loads(honest)
    yardstick = time.process_time() - began
    began = time.process_time()
    try:
        lk.diagnose(path)
        text = "nothing"
    except ValueError as error:
        text = str(error)
    peak = re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())
    said[path.name] = [text, (time.process_time() - began) / yardstick, int(peak[1]) >> 10]
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_a_hostile_file_is_one_clear_error_in_little_time_and_memory(tmp_path):
    for name, (content, _) in HOSTILE.items():
        file = tmp_path / name
        if content is None:
            os.mkfifo(file)
            continue
        written, size = content if isinstance(content, tuple) else (content, None)
        file.write_bytes(written)
        if size is not None:
            os.truncate(file, size)
    command = [sys.executable, "-c", READ_THEM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    wrong = []
    for name, (_, says) in HOSTILE.items():
        text, times_3_mib_of_json, peak_mib = told[name]
        is_clear = name in text and "\n" not in text and re.search(says, text)
        if not is_clear or times_3_mib_of_json > 15 or peak_mib > 500:
            wrong.append((name, text[:300], times_3_mib_of_json, peak_mib))
    assert not wrong


def test_what_is_no_file_is_no_record():
    for path in ("/dev/zero", "/proc/self/mem", "/", "", "a\0b", "x" * 5000):
        with pytest.raises(ValueError):
            lk.load(path)


def test_what_stands_in_a_file_is_drawn_as_text_of_one_line(tmp_path):
    """No name forges a line of the verdict, leaves a fence, or steers a terminal."""
    forged = "n\nBottleneck compute\u2028```\x1b[31m\u202e\ud800<b>````\r\x7f\x9b1m\u2066"
    spec = {"event": "spec", "version": 1, "run": forged, "pipeline": {}}
    spec["watched"] = {"loader": forged, "place": [forged, 3]}
    machine = json.loads(MACHINE) | {"name": forged, "versions": {forged: forged}}
    error = {"event": "error", "kind": forged, "message": forged, "traceback": "a\n\x1b b"}
    steps = host_steps(1, 8, 40, copy=1)
    run = load(tmp_path, [spec, machine, {"event": "begin", "warmup": 1}, *steps, error])
    verdict = str(run.diagnose())
    lines = verdict.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["RECORDED", "Why:"]
    for text in (verdict, repr(run), str(run.machine), run.error, str(run.lines)):
        assert not STEERS.search(text) and "\nBottleneck" not in text
    assert run.event("error")["traceback"] == "a\n\\x1b b"
    assert "<b>" not in run.export(tmp_path / "page.html").read_text()
    trace = tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": forged, "pid": forged, "ts": 1, "dur": 9}
    trace.write_bytes(TRACE + json.dumps(kernel).encode() + b"]}")
    for text in (str(lk.trace(trace)), str(lk.diagnose(trace)), str(lk.trace(trace).kernels_us)):
        assert not STEERS.search(text) and "\nBottleneck" not in text


CODE = {"loader": "loader", "model": "self.net", "call": "data.DataLoader"}
CODE["arguments"] = {"dataset": "train_set", "batch_size": "32", "collate_fn": "mine.collate"}


@pytest.mark.parametrize(
    "part, said",
    [
        ("loader", "loader\nimport os"),
        ("loader", "loader; import os"),
        ("loader", "class"),
        ("call", "os.system"),
        ("call", "(lambda *a: 1)"),
        ("call", "DataLoader(1)"),
        ("dataset", "open('/etc/passwd')"),
        ("dataset", "[x for x in y]"),
        ("dataset", "train_set, **evil"),
        ("batch_size", "1e999"),
        ("collate_fn", "x" * 5000),
        ("generator", "torch.Generator().manual_seed(os.getpid())"),
    ],
)
def test_code_to_paste_is_made_of_names_and_numbers_whatever_a_record_says(part, said):
    arguments = CODE["arguments"]
    told = CODE | ({part: said} if part in CODE else {"arguments": arguments | {part: said}})
    changes = {"num_workers": 4, "compile": "default", "fused_optimizer": True}
    code = LoopCode.of(told)
    every = [code.lines({name: value}) for name, value in changes.items()]
    every += [LoopCode.of(told, trainer=True).lines(changes)]
    assert said not in "".join(every)
    line = LoopCode.of(CODE).lines({"num_workers": 4})
    assert (
        "data.DataLoader(train_set, batch_size=32, collate_fn=mine.collate, num_workers=4" in line
    )


# What the user wrote in the notebook (a dataset, a step, an answer) goes to their own bench and
# its workers: once, through a file in the run's folder that is deleted. Nothing comes back so.
MAY_PICKLE = {
    "results/payload.py",  # only writes, to processes that this one starts
    "bench/user_dataset.py",
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
