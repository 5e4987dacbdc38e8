"""`lk.plot`: what is drawn, what is missing, and what stands beside."""

from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from test_plots import overflow

import labkit as lk

SIZES = [64, 128, 256, 512]


def rows_of(dtype, scale=1.0, **columns):
    rows = pandas.DataFrame({"n": SIZES, "dtype": dtype, "ms": [scale * n / 64 for n in SIZES]})
    return rows.assign(**{"iqr_ms": 0.01, "noisy": False, "error": None, **columns})


BOTH = pandas.concat([rows_of("float32"), rows_of("bfloat16", 0.5)])


def legend_of(figure):
    [axes] = figure.axes
    return [text.get_text() for text in axes.get_legend().get_texts()]


def notes_of(figure):
    return figure.get_supxlabel().splitlines()


def numbers_in(figure):
    [axes] = figure.axes
    return [text.get_text() for text in axes.texts]


def named_lines(figure):
    [axes] = figure.axes
    return {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}


def test_a_number_along_the_axis_makes_lines_with_a_colour_for_each_value_of_by():
    figure = lk.plot(BOTH, "n", "ms", "dtype", title="Products")
    [axes] = figure.axes
    lines = named_lines(figure)
    assert legend_of(figure) == list(lines) == ["float32", "bfloat16"]
    assert list(lines["bfloat16"].get_ydata()) == [0.5, 1, 2, 4]
    assert len({line.get_color() for line in lines.values()}) == 2
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == SIZES
    assert figure.get_suptitle() == "Products"
    assert notes_of(figure) == ["error bars: interquartile range"]


def test_the_axes_are_logarithmic_on_request_or_where_sizes_double():
    for log, *scales in (("", "linear", "linear"), ("y", "linear", "log"), ("xy", "log", "log")):
        [axes] = lk.plot(BOTH, "n", "ms", "dtype", log=log).axes
        assert [axes.get_xscale(), axes.get_yscale()] == scales
    [axes] = lk.plot(rows_of("float32").head(2), "n", "ms").axes
    assert axes.get_xscale() == "linear" and axes.get_legend() is None
    with pytest.raises(ValueError, match="log='z' is not allowed"):
        lk.plot(BOTH, "n", "ms", log="z")


def test_a_row_without_a_number_is_a_gap_with_its_reason_below_the_axes():
    failed = rows_of("float32")
    failed.loc[2, "error"] = "skipped: needs CUDA"
    failed.loc[3, ["ms", "error"]] = [np.nan, "out of memory"]
    figure = lk.plot(pandas.concat([failed, rows_of("bfloat16")]), "n", "ms", "dtype")
    drawn = named_lines(figure)["float32"].get_ydata()
    assert list(drawn[:2]) == [1, 2] and np.isnan(drawn[2:]).all()
    assert notes_of(figure)[:2] == [
        "float32: skipped: needs CUDA at 256",
        "float32: out of memory at 512",
    ]
    nothing = lk.plot(failed.assign(ms=np.nan), "n", "ms")
    assert notes_of(nothing)[0] == "no ms at 64, 128"


def test_published_rows_beside_are_dashed_and_named_by_card_and_source():
    measured = SimpleNamespace(
        rows=rows_of("FP32").rename(columns={"n": "batch", "dtype": "precision"}),
        machine=SimpleNamespace(name="EPYC"),
        mark=None,
    )
    published = lk.published("inference").query("card == 'V100'")
    lines = named_lines(lk.plot(measured, "batch", "ms", "precision", beside=published))
    theirs = "V100, FP32, published by NVIDIA/DeepLearningExamples"
    assert list(lines)[:2] == ["FP32", theirs]
    assert (lines["FP32"].get_linestyle(), lines[theirs].get_linestyle()) == ("-", "--")
    assert lines["FP32"].get_color() == lines[theirs].get_color()
    lines = named_lines(lk.plot(measured, "batch", "ms", beside=published))
    assert list(lines)[0] == "measured here, EPYC"


def test_rows_of_another_machine_say_so_alone_and_beside():
    recorded = SimpleNamespace(rows=BOTH, mark="RECORDED on H100", machine=None)
    assert notes_of(lk.plot(recorded, "n", "ms", "dtype"))[0] == "RECORDED on H100"
    figure = lk.plot(BOTH, "n", "ms", "dtype", beside=recorded)
    assert "bfloat16, RECORDED on H100" in legend_of(figure)
    limits = lk.plot(lk.published("power-limits"), "limit_w", "joules")
    assert notes_of(limits) == ["A40: published by ml-energy/zeus"]
    assert limits.axes[0].get_xlabel() == "limit, W"


def test_names_along_the_axis_make_bars_with_their_numbers():
    mine = pandas.DataFrame({"card": ["EPYC"], "tflops": [0.11]})
    figure = lk.plot(mine, "card", "tflops", beside=lk.published("matmul"), log="y")
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "EPYC",
        "A100 SXM",
        "H100 SXM",
        "B200 SXM",
        "MI300X",
    ]
    assert axes.get_xlabel() == "TFLOP/s" and axes.get_xscale() == "log"
    assert legend_of(figure) == ["your rows", "published by stas00/ml-engineering"]
    assert numbers_in(figure)[::3] == ["0.110", "1,745"]


@pytest.mark.parametrize(
    "values, shown",
    [
        ([0.0915, 0.0999, 0.1], ["0.091", "0.100", "0.100"]),
        ([1745, 3], ["1,745", "3"]),
        ([0.0107, 3.1, 93.2], ["0.0107", "3.10", "93.2"]),  # too far apart for common decimals
        ([0.0, np.nan], ["0"]),
    ],
)
def test_the_numbers_of_a_figure_have_the_same_decimals(values, shown):
    rows = pandas.DataFrame({"what": [f"no. {i}" for i in range(len(values))], "ms": values})
    assert numbers_in(lk.plot(rows, "what", "ms")) == shown


def test_names_on_a_logarithmic_axis_have_points_and_no_bars():
    rows = pandas.DataFrame({"what": ["disk", "cache"], "ms": [2, 0.01], "noisy": [False, True]})
    figure = lk.plot(rows.assign(iqr_ms=[0.2, 0.001]), "what", "ms", log="y")
    [axes] = figure.axes
    assert axes.get_xscale() == "log" and not axes.patches
    points, hollow = (line for line in axes.lines if line.get_marker() == "o")
    assert list(points.get_xdata()) == [2, 0.01] and list(points.get_ydata()) == [0, 1]
    assert list(hollow.get_xdata()) == [0.01] and hollow.get_markerfacecolor() == "white"
    assert legend_of(figure) == ["hollow: noisy, spread above 10% of the median"]
    assert overflow(figure) == []


def test_a_notebook_shows_a_figure_as_it_is_stored_whatever_pyplot_has_registered():
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.pylabtools import print_figure
    from IPython.utils.capture import capture_output
    from matplotlib.figure import Figure

    shell = InteractiveShell.instance()
    png = shell.display_formatter.formatters["image/png"]
    png.for_type(Figure, print_figure)  # as pyplot's backend for notebooks does
    figure = lk.plot(rows_of("float32"), "n", "ms")
    try:
        with capture_output() as captured:
            shell.display_formatter.format(figure)
    finally:
        InteractiveShell.clear_instance()
    [output] = captured.outputs
    assert output.data == {"image/png": figure._repr_png_(), "text/plain": repr(figure)}


@pytest.mark.parametrize(
    "x, y, by, says",
    [
        ("m", "ms", None, "No column 'm'; there are: n, dtype, ms, iqr_ms, noisy, error"),
        ("n", "ms", "kind", "No column 'kind'"),
        ("n", "dtype", None, "Column 'dtype' holds no numbers"),
    ],
)
def test_a_column_that_cannot_be_drawn_is_named(x, y, by, says):
    with pytest.raises(ValueError, match=says):
        lk.plot(BOTH, x, y, by)


@pytest.mark.parametrize("by", [None, "dtype"])
def test_a_table_without_rows_is_an_empty_figure(by):
    [axes] = lk.plot(rows_of("float32")[:0], x="n", y="ms", by=by, log="x").axes
    assert not any(len(line.get_xdata()) for line in axes.lines)
