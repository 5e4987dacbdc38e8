"""Public traces: fetched by checksum, kept, read offline; any other file is refused."""

import hashlib
import itertools
import json
import urllib
from unittest.mock import Mock

import pytest
from test_trace import KNOWN, STEP, kernel

import labkit as lk
from labkit import diagnose
from labkit.results.templates import entries
from labkit.traces import public
from labkit.traces.file import TraceError
from labkit.traces.public import FILE, STORED_FILE


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return the file of the catalogue's only trace at its place on the site; none is fetched."""
    known = entries(FILE)["h100-batch-1"] | {"copies": []}
    place = tmp_path / "site" / known["repository"] / known["commit"] / known["path"]
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps([kernel(1, 1, 80, "gemm"), STEP]))
    known["sha256"] = hashlib.sha256(place.read_bytes()).hexdigest()
    monkeypatch.setattr(public, "SITE", (tmp_path / "site").as_uri())
    listings = {
        FILE: {"small": known},
        STORED_FILE: {"small": entries(STORED_FILE)["h100-batch-1"]},
    }
    monkeypatch.setattr(public, "entries", listings.__getitem__)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LABKIT_TRACES", raising=False)
    return place


def kept(tmp_path):
    return [*tmp_path.glob("cache/traces/*")]


def test_a_trace_is_fetched_once_and_then_read_without_the_network(served, tmp_path):
    first = lk.public_trace("small")
    assert first.source == "small: H100, AMD-AGI/TraceLens"
    [path] = kept(tmp_path)
    served.unlink()
    assert lk.public_trace("small") == first
    assert lk.public_trace()["here"].tolist() == [True]
    path.write_bytes(b"half of it")  # the cache was damaged: it is not believed
    offline = lk.public_trace("small")
    assert "network, or set LABKIT_TRACES" in offline.notes[-1]


def test_the_kernels_of_a_stored_trace_are_those_that_take_most():
    for stored in itertools.chain(*entries(STORED_FILE).values()):
        times_us = [*stored["kernels_us"].values()]
        assert times_us == sorted(times_us, reverse=True) and len(times_us) == 6


def test_a_tampered_file_is_refused_and_nothing_is_kept(served, tmp_path):
    served.write_bytes(served.read_bytes().replace(b"gemm", b"evil"))
    with pytest.raises(TraceError, match="not the file that was published.*LABKIT_TRACES"):
        lk.public_trace("small")
    assert kept(tmp_path) == []


def test_a_page_that_asks_for_a_login_leaves_what_was_read_from_the_trace_before(served, tmp_path):
    served.write_text("<html>Welcome to our network</html>")
    found = lk.public_trace("small")
    assert "STORED small" in repr(found) and "ask for a login" in found.notes[-1]
    assert kept(tmp_path) == []


@pytest.mark.usefixtures("served")
def test_a_trace_that_is_gone_leaves_what_was_read_from_it_which_says_so(tmp_path, monkeypatch):
    gone = urllib.error.HTTPError("", 404, "Not Found", {}, None)
    monkeypatch.setattr(urllib.request, "urlopen", Mock(side_effect=gone))
    found = lk.public_trace("small")
    assert "STORED small" in repr(found) and "Not Found" in repr(found)
    verdict = diagnose(found)
    assert verdict.bottleneck == "launch" and "STORED" in verdict.source
    assert "STORED" in found.timeline().texts[0].get_text() and kept(tmp_path) == []
    assert "(+0%)" in repr(found.compare(found)) and found.lanes["kernels"].shape == (40, 2)


@pytest.mark.parametrize("name", lk.public_trace()["name"])
def test_what_is_stored_is_what_others_found(name, monkeypatch):
    monkeypatch.setattr(public, "_local", Mock(side_effect=OSError("no network")))
    found = lk.public_trace(name)
    assert diagnose(found).bottleneck == KNOWN[name]["bottleneck"]
    assert found.timeline()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown trace 'h200'; available: v100-workers-0"):
        lk.public_trace("h200")
