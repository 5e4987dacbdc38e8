"""A trace that Perfetto's page fetches from this machine, and nobody else."""

import socket
import urllib.error
import urllib.request

import pytest

from labkit.traces import perfetto


def test_one_trace_is_served_until_the_next_and_its_name_has_to_be_known(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(perfetto, "PORT", port)
    trace = tmp_path / "my trace.json"
    trace.write_text("{}")
    before = perfetto.serve(trace)
    now = perfetto.serve(trace)
    page, _, address = now.partition("/#!/?url=")
    assert address.startswith(f"http://127.0.0.1:{port}/") and address in now._repr_html_()
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == page == "https://ui.perfetto.dev"
        assert answer.read() == b"{}"
    for stale in (before.partition("url=")[2], f"http://127.0.0.1:{port}/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(stale)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(perfetto, "_servers", [])
        with pytest.raises(RuntimeError, match=f"port {port}.*drag .*my trace.json into"):
            perfetto.serve(trace)
    server = perfetto._servers.pop()
    server.shutdown()
    server.server_close()
