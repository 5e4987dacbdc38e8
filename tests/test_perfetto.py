"""A trace that Perfetto's page fetches from this machine, and nobody else."""

import dataclasses
import json
import socket
import urllib.error
import urllib.request

import pytest

import labkit as lk
from labkit.traces import perfetto


def test_one_trace_is_served_until_the_next_and_its_name_has_to_be_known(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(perfetto, "PORT", port)
    trace = tmp_path / "my trace.json"
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9}
    trace.write_text(json.dumps([step]))
    found = lk.trace(trace)
    with pytest.raises(ValueError, match="'my trace.json' is no file of its own.*LABKIT_TRACES"):
        dataclasses.replace(found, path=None).open_in_perfetto()
    before = found.open_in_perfetto()
    now = found.open_in_perfetto()
    page, _, address = now.partition("/#!/?url=")
    assert address.startswith(f"http://127.0.0.1:{port}/") and address in now._repr_html_()
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == page == "https://ui.perfetto.dev"
        assert answer.read() == trace.read_bytes()
    for stale in (before.partition("url=")[2], f"http://127.0.0.1:{port}/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(stale)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(perfetto, "_servers", [])
        with pytest.raises(RuntimeError, match=f"port {port}.*drag .*my trace.json into"):
            found.open_in_perfetto()
    server = perfetto._servers.pop()
    server.shutdown()
    server.server_close()
