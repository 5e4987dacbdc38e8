"""`lk.plot`: what is drawn, what is missing, and what stands beside."""

import numpy as np
import pandas
import pytest

import labkit as lk

SIZES = [64, 128, 256, 512]


BOTH = pandas.DataFrame(
    {
        "n": 2 * SIZES,
        "dtype": 4 * ["float32"] + 4 * ["bfloat16"],
        "ms": [1, 2, 4, 8, 0.5, 1, 2, 4],
        "iqr_ms": 0.01,
        "noisy": False,
        "error": None,
    }
)
FLOAT32 = BOTH[:4]


def axes_of(*what, **more):
    [axes] = lk.plot(*what, **more).axes
    return axes


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def notes_of(figure):
    return [text.get_text() for text in figure.texts if text.get_weight() != "bold"]


def numbers_in(axes):
    return [text.get_text() for text in axes.texts]


def named_lines(axes):
    return {bars.get_label(): bars.lines[0] for bars in axes.containers if bars.get_label()}


def test_a_number_along_the_axis_makes_lines_with_a_colour_for_each_value_of_by():
    figure = lk.plot(BOTH, "n", "ms", "dtype", title="Products")
    [axes] = figure.axes
    lines = named_lines(axes)
    assert legend_of(axes) == list(lines) == ["float32", "bfloat16"]
    assert list(lines["bfloat16"].get_ydata()) == [0.5, 1, 2, 4]
    assert lines["float32"].get_color() != lines["bfloat16"].get_color()
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == SIZES
    assert figure.texts[0].get_text() == "Products"
    assert lk.plot(BOTH, "n", "ms").texts[0].get_text() == "ms over n"


@pytest.mark.parametrize(
    "rows, log, scales",
    [
        (BOTH, "", ["linear", "linear"]),
        (BOTH, "y", ["linear", "log"]),
        (BOTH[:2], None, ["linear", "linear"]),  # the sizes double but once
        (BOTH[:0], "x", ["log", "linear"]),  # without rows
    ],
)
def test_the_axes_are_logarithmic_on_request_or_where_sizes_double(rows, log, scales):
    axes = axes_of(rows, "n", "ms", "dtype", log=log)
    assert [axes.get_xscale(), axes.get_yscale()] == scales


@pytest.mark.parametrize(
    "x, y, more, says",
    [
        ("m", "ms", {}, "No column 'm'; there are: n, dtype, ms, iqr_ms, noisy, error"),
        ("n", "ms", {"by": "kind"}, "No column 'kind'"),
        ("n", "ms", {"log": "z"}, "log='z' is not allowed"),
    ],
)
def test_what_cannot_be_drawn_is_named(x, y, more, says):
    with pytest.raises(ValueError, match=says):
        lk.plot(BOTH, x, y, **more)


def test_a_row_without_a_number_is_a_gap_with_its_reason_below_the_axes():
    failed = FLOAT32.assign(
        ms=[1, 2, np.nan, np.nan], error=[None, None, "skipped: needs CUDA", "out of memory"]
    )
    figure = lk.plot(failed, "n", "ms", "dtype")
    drawn = figure.axes[0].lines[0].get_ydata()
    assert list(drawn[:2]) == [1, 2] and np.isnan(drawn[2:].astype(float)).all()
    gaps = "no ms: float32 256 skipped: needs CUDA, float32 512 out of memory"
    assert gaps in notes_of(figure)[0]


def test_published_rows_beside_are_dashed_and_named_by_card_and_source():
    measured = FLOAT32.assign(batch=SIZES, precision="FP32")
    published = lk.published("inference").query("card == 'V100'")
    lines = named_lines(axes_of(measured, "batch", "ms", "precision", beside=published))
    mine = lines["FP32"]
    theirs = lines["FP32, published by NVIDIA/DeepLearningExamples"]
    assert (mine.get_linestyle(), theirs.get_linestyle()) == ("-", "--")
    assert mine.get_color() == theirs.get_color()


def test_names_along_the_axis_make_bars_with_their_numbers():
    mine = pandas.DataFrame({"card": ["EPYC"], "tflops": [0.11]})
    axes = axes_of(mine, "card", "tflops", beside=lk.published("matmul"), log="y")
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["EPYC", "A100 SXM", "H100 SXM", "B200 SXM", "MI300X"]
    assert axes.get_xlabel() == "TFLOP/s"
    assert legend_of(axes) == ["published by stas00/ml-engineering"]
    assert numbers_in(axes)[::3] == ["0.11", "1,745"]
