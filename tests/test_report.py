"""What people take along of a run: its steps as a table, its picture, a page for others."""

import pytest

import labkit as lk


@pytest.fixture(scope="module")
def run():
    return lk.recorded("workers-6")


def test_the_frame_has_a_row_for_each_measured_step_whose_parts_sum_to_it(run):
    frame = run.frame
    assert len(frame) == run.steps - run.warmup and frame.index.name == "step"
    parts = frame[["wait_ms", "copy_ms", "compute_ms", "other_ms"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(frame["step_ms"].to_numpy())


def test_a_page_is_self_contained_and_says_that_it_was_recorded(run, tmp_path):
    page = run.export(tmp_path / "run.html").read_text()
    assert "RECORDED on" in page and "data:image/png;base64," in page
    assert "http" not in page  # it fetches nothing


def test_a_run_is_written_in_the_format_of_the_suffix(run, tmp_path):
    for suffix, begins in {".csv": b"step,", ".png": b"\x89PNG"}.items():
        assert run.export(tmp_path / f"run{suffix}").read_bytes().startswith(begins)
    with pytest.raises(ValueError, match="Format 'docx' is not supported"):
        run.export(tmp_path / "run.docx")
