"""Public traces: fetched by checksum, kept, read offline; any other file is refused."""

import functools
import hashlib
import http.server
import json
import threading

import pytest
from test_trace import kernel, step

import labkit as lk
from labkit.diagnosis.diagnosis import diagnose
from labkit.diagnosis.trace_file import TraceError
from labkit.results import public_files, shipped


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return (the catalogue's only trace, its file on a local server), with an empty cache."""
    content = json.dumps({"traceEvents": [kernel(1, 1, 80, "gemm"), step(1, 0, 100)]}).encode()
    known = dict.fromkeys(("title", "why", "lesson", "licence"), "x") | {
        "bottleneck": "launch",
        "repository": "someone/traces",
        "commit": "abc1234",
        "hardware": "card",
        "path": "a/trace.json",
        "file": "trace.json",
        "sha256": hashlib.sha256(content).hexdigest(),
        "copies": [],
        "numbers": {"all": {"window_ms": 1.0, "kernel_busy": 0.8, "idle": None}},
    }
    data = tmp_path / "data"
    data.mkdir()
    (data / "public_traces.json").write_text(json.dumps({"small": known}))
    (data / "trace_lanes.json").write_text("{}")
    served = tmp_path / "site" / "someone" / "traces" / "abc1234" / "a" / "trace.json"
    served.parent.mkdir(parents=True)
    served.write_bytes(content)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        log_message = staticmethod(lambda *_: None)

    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(public_files, "SITE", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(shipped, "DATA", data)
    monkeypatch.setattr(public_files, "home", lambda: tmp_path / "cache")
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
    offline = lk.public_trace("small")
    assert "connect to the network, or set LABKIT_TRACES" in offline.missing


def test_a_tampered_file_is_refused_and_nothing_is_kept(site, tmp_path):
    _, served = site
    served.write_bytes(served.read_bytes().replace(b"gemm", b"evil"))
    with pytest.raises(TraceError, match="not the file that was published.*LABKIT_TRACES"):
        lk.public_trace("small")
    assert kept(tmp_path) == []


def test_without_network_published_numbers_and_a_stored_excerpt_say_what_they_are(site, tmp_path):
    _, served = site
    served.unlink()
    found = lk.public_trace("small")
    assert "PUBLISHED reference numbers, not read from the trace" in repr(found)
    assert "LABKIT_TRACES" in repr(found) and "not found" in repr(found)
    assert "PUBLISHED" in found.plot().texts[0].get_text()
    verdict = diagnose(found)
    assert (verdict.bottleneck, verdict.confidence) == ("launch", 0.0)
    assert verdict.source.startswith("PUBLISHED")
    assert kept(tmp_path) == []
    assert "80.0%" in repr(found.compare(found))
    assert "PUBLISHED" in found.timeline().texts[0].get_text()  # no excerpt of it is stored
    excerpt = {"small": {"kernels": [[1.0, 2.0], [3.0, 5.0]]}}
    (tmp_path / "data" / "trace_lanes.json").write_text(json.dumps(excerpt))
    assert "STORED EXCERPT" in found.timeline(0.0, 9.0).texts[0].get_text()
    assert found.lanes["kernels"].tolist() == excerpt["small"]["kernels"]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown trace 'h200'; available: v100-workers-0"):
        lk.public_trace("h200")
