"""Public traces: fetched by checksum, kept, read offline; any other file is refused."""

import hashlib
import json
import urllib
from unittest.mock import Mock

import pytest
from test_trace import STEP, kernel

import labkit as lk
from labkit import diagnose
from labkit.results.templates import entries
from labkit.traces import public
from labkit.traces.file import TraceError
from labkit.traces.public import FILE, LANES_FILE


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return the file of the catalogue's only trace at its place on the site; none is fetched."""
    known = entries(FILE)["h100-batch-1"] | {"copies": []}
    place = tmp_path / "site" / known["repository"] / known["commit"] / known["path"]
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps([kernel(1, 1, 80, "gemm"), STEP]))
    known["sha256"] = hashlib.sha256(place.read_bytes()).hexdigest()
    monkeypatch.setattr(public, "SITE", (tmp_path / "site").as_uri())
    listings = {FILE: {"small": known}, LANES_FILE: {}}
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
    assert "connect to the network, or set LABKIT_TRACES" in offline.missing


def test_a_tampered_file_is_refused_and_nothing_is_kept(served, tmp_path):
    served.write_bytes(served.read_bytes().replace(b"gemm", b"evil"))
    with pytest.raises(TraceError, match="not the file that was published.*LABKIT_TRACES"):
        lk.public_trace("small")
    assert kept(tmp_path) == []


@pytest.mark.usefixtures("served")
def test_a_file_that_is_gone_leaves_published_numbers_and_an_excerpt_that_say_what_they_are(
    tmp_path, monkeypatch
):
    gone = urllib.error.HTTPError("", 404, "Not Found", {}, None)
    monkeypatch.setattr(urllib.request, "urlopen", Mock(side_effect=gone))
    found = lk.public_trace("small")
    assert "PUBLISHED reference numbers, not read from the trace" in repr(found)
    assert "LABKIT_TRACES" in repr(found) and "Not Found" in repr(found)
    verdict = diagnose(found)
    assert (verdict.bottleneck, verdict.confidence) == ("launch", 0.0)
    assert verdict.source.startswith("PUBLISHED") and kept(tmp_path) == []
    assert verdict.table().rows[0][1] is None  # what it costs is not known
    assert "6.9%" in repr(found.compare(found))
    assert "PUBLISHED" in repr(found.timeline())  # no excerpt of it is stored
    lanes = {"small": {"kernels": [[1, 2], [3, 5]]}}
    monkeypatch.setattr(public, "entries", {LANES_FILE: lanes}.get)
    assert "STORED EXCERPT" in found.timeline(0.0, 9.0).texts[0].get_text()
    assert found.lanes["kernels"].tolist() == [[1, 2], [3, 5]]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown trace 'h200'; available: v100-workers-0"):
        lk.public_trace("h200")
