"""Public traces: fetched by checksum, kept, read offline; any other file is refused."""

import functools
import hashlib
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

import labkit as lk
from labkit.analysis import published
from labkit.analysis.trace_file import TraceError
from labkit.results import shipped

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"
TRACES = Path(os.environ.get("LABKIT_TRACES") or BESIDE)
NAMES = [known.name for known in lk.public_trace()]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return (the catalogue's only trace, its file on a local server), with an empty cache."""
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 80}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9}
    content = json.dumps({"traceEvents": [event, step | {"ts": 0, "dur": 100}]}).encode()
    texts = "title bottleneck=launch why lesson licence repository=someone/traces commit=abc1234"
    texts += " hardware=card path=a/trace.json file=trace.json"
    known = {name: value or "x" for name, _, value in (t.partition("=") for t in texts.split())}
    known |= {"sha256": hashlib.sha256(content).hexdigest(), "copies": []}
    known["numbers"] = {"all": {"window_ms": 1.0, "kernel_busy": 0.8, "idle": None}}
    data = tmp_path / "data"
    data.mkdir()
    (data / "public_traces.json").write_text(json.dumps({"small": known}))
    served = tmp_path / "site" / "someone" / "traces" / "abc1234" / "a" / "trace.json"
    served.parent.mkdir(parents=True)
    served.write_bytes(content)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        log_message = staticmethod(lambda *_: None)

    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(published, "SITE", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(shipped, "DATA", data)
    monkeypatch.setattr(published, "home", lambda: tmp_path / "cache")
    monkeypatch.delenv("LABKIT_TRACES", raising=False)
    yield server, served
    server.shutdown()
    server.server_close()


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "traces").glob("*"))


def test_a_trace_is_fetched_once_and_then_read_without_the_network(site, tmp_path):
    server, served = site
    first = lk.public_trace("small")
    assert first.gpu_utilization == pytest.approx(0.8, abs=0.01)
    assert first.source == "small: card, someone/traces"
    [path] = kept(tmp_path)
    assert path.read_bytes() == served.read_bytes()
    server.shutdown()
    server.server_close()
    served.unlink()
    assert lk.public_trace("small") == first
    assert "here" in repr(lk.public_trace())
    path.write_bytes(b"half of it")  # the cache was damaged: it is not believed
    assert lk.public_trace("small").missing.startswith("not fetched")


def test_a_tampered_file_is_refused_and_nothing_is_kept(site, tmp_path):
    _, served = site
    served.write_bytes(served.read_bytes().replace(b"gemm", b"evil"))
    with pytest.raises(TraceError, match="not the file that was published.*LABKIT_TRACES"):
        lk.public_trace("small")
    assert kept(tmp_path) == []


def test_a_file_without_end_is_not_read_to_its_end(site, tmp_path, monkeypatch):
    monkeypatch.setattr(published, "MAX_BYTES", 10)
    with pytest.raises(TraceError):
        lk.public_trace("small")
    assert kept(tmp_path) == []


def test_without_network_the_published_numbers_say_what_they_are(site, tmp_path):
    _, served = site
    served.unlink()
    found = lk.public_trace("small")
    assert "PUBLISHED reference numbers, not read from the trace" in repr(found)
    assert "LABKIT_TRACES" in repr(found) and "not found" in repr(found)
    assert "PUBLISHED" in found.plot().texts[0].get_text()
    verdict = lk.diagnose(found)
    assert (verdict.bottleneck, verdict.confidence) == ("launch", 0.0)
    assert verdict.source.startswith("PUBLISHED")
    assert kept(tmp_path) == []


def test_a_folder_takes_the_networks_place_and_is_checked_too(site, tmp_path, monkeypatch):
    server, served = site
    mine = tmp_path / "mine" / "deeper" / "trace.json"
    mine.parent.mkdir(parents=True)
    shutil.move(served, mine)
    monkeypatch.setenv("LABKIT_TRACES", str(tmp_path / "mine"))
    assert lk.public_trace("small").steps == 1
    mine.write_bytes(mine.read_bytes() + b" ")
    assert lk.public_trace("small").missing


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown trace 'h200'; available: v100-workers-0"):
        lk.public_trace("h200")


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not on this machine")
@pytest.mark.parametrize("name", NAMES)
def test_every_real_trace_has_the_published_cause_and_share(name, monkeypatch):
    monkeypatch.setenv("LABKIT_TRACES", str(TRACES))
    known = next(each for each in lk.public_trace() if each.name == name)
    found = lk.public_trace(name)
    assert lk.diagnose(found).bottleneck == known.bottleneck
    if len(known.numbers) == 1 and known.repository != "pytorch/kineto":
        busy = known.numbers["all"]["kernel_busy"]
        assert found.window["kernel_busy"] == pytest.approx(busy, abs=0.01)
