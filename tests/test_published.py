"""Other people's numbers: complete, true to their source, and never mixed with one's own."""

import json
import re

import pytest

import labkit as lk
from labkit.analysis.datasheets import CARDS
from labkit.results.shipped import DATA

NAMES = [entry.name for entry in lk.published()]


def texts(figure):
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    found = [*figure.texts, *(text for legend in legends for text in legend.get_texts())]
    return " | ".join(text.get_text() for text in found)


FIELDS = "title hardware measured repository commit path licence date"


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_says_who_measured_what_on_which_hardware(name):
    found = lk.published(name)
    assert all(getattr(found, field) for field in FIELDS.split())
    assert found.source.startswith("https://github.com/") and found.commit in found.source
    assert "PUBLISHED: measured by others" in repr(found) and found.licence in repr(found)
    said = texts(found.plot())
    assert f"PUBLISHED: {found.hardware}" in said and found.commit[:7] in said
    assert "measured here" not in said and "RECORDED" not in said
    assert name in repr(lk.published())


def test_the_numbers_are_those_of_their_sources():
    [small] = lk.published("batch-power").where(
        card="V100", model="shufflenetv2", optimizer="adam", batch=8, limit_w=250
    )
    assert (round(small["epoch_s"]), round(small["power_w"])) == (225, 39)
    limits = {row["limit_w"]: row["joules"] for row in lk.published("power-limits").rows}
    assert (round(limits[300]), round(limits[175])) == (6225, 4867) and len(limits) == 9
    [big] = lk.published("inference").where(card="V100", precision="AMP", batch=256)
    assert (big["img_per_s"], big["latency_ms"]) == (3382, 84.14)
    assert [row["tok_per_s"] for row in lk.published("llm-ladder").rows][-2:] == [142156, 419259]


@pytest.mark.parametrize(
    ("name", "case", "within"),
    [
        ("inference", {"card": "V100", "precision": "FP32"}, 0.21),
        ("inference", {"card": "T4", "precision": "AMP"}, 0.31),
        ("batch-power", {"card": "A40"}, 0.33),
        ("batch-power", {"card": "V100", "model": "resnet50"}, 0.08),
    ],
)
def test_a_fixed_part_and_a_part_per_sample_describe_real_cards(name, case, within):
    knee = lk.published(name).knee(**case)
    assert 0 < knee.misfit < within
    assert knee.source.startswith("PUBLISHED") and "PUBLISHED" in repr(knee)
    assert "PUBLISHED" in texts(knee.plot())


def runs(*names):
    return [lk.recorded(name) for name in names]


def ladder():
    found = lk.Ladder()
    for run in runs("capstone-0", "capstone-1"):
        found.add(run.path.stem, run)
    return found


BESIDE = {  # what may stand beside, and a text that it brings
    "matmul": (lambda: lk.recorded("roofline"), "GFLOP/s"),
    "remote-reads": (lambda: runs("textbook-0", "workers-2"), ""),
    "inference": (lambda: runs("batch-1", "batch-16", "batch-64"), ""),
    "compile": (lambda: runs("compile-off", "compile-default"), "x"),
    "llm-ladder": (ladder, "x"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_own_points_stand_beside_in_another_mark(name):
    give, text = BESIDE[name]
    own = give()
    figure = lk.published(name).plot(beside=own)
    assert "RECORDED: Intel" in texts(figure) and "measured here" not in texts(figure)
    lines = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata())]
    assert {"D", "s"} <= {line.get_marker() for line in lines}
    assert not text or any(text in t.get_text() for axes in figure.axes for t in axes.texts)
    if isinstance(own, list):
        for run in own:
            run.recorded = False
        assert "measured here: Intel" in texts(lk.published(name).plot(beside=own))


def test_what_cannot_stand_beside_is_refused_with_what_to_give():
    run = lk.recorded("workers-2")
    for name, says in (
        ("mixed-precision", r"give lk.sweep\(pipeline, precision="),
        ("matmul", "give what lk.measure"),
        ("power-limits", "nothing that is measured here compares"),
    ):
        with pytest.raises(ValueError, match=says):
            lk.published(name).plot(beside=run)
    power = lk.published("batch-power")
    with pytest.raises(ValueError, match=r"No row with card='V200'; there are \['V100'"):
        power.plot(card="V200")
    with pytest.raises(ValueError, match="Unknown column 'gpu'"):
        power.where(gpu="V100")
    with pytest.raises(ValueError, match="Unknown measurements 'zeus'; available: matmul"):
        lk.published("zeus")
    with pytest.raises(ValueError, match="several times for a batch"):
        power.knee()


# -- the glossary ---------------------------------------------------------------------------------

ASKED = """kernel, launch, stream, occupancy, warp, SM, DMA, pinned, pageable, write-allocate, HBM,
arithmetic intensity, roofline, Tensor Core, VRAM, PCIe, NVLink, allocator, autocast, loss scaling,
graph break, CUDA graph, all-reduce, MFU, MBU, KV cache, prefill, decode, prefetch, collate,
worker, straggler"""


def test_every_word_is_explained_in_one_to_four_sentences_with_a_link_and_a_notebook():
    for term in lk.glossary():
        assert 1 <= len(re.findall(r"[.?!](?= [A-Z]|$)", term.text)) <= 4, term.term
        assert term.link.startswith("https://") and re.fullmatch("0[0-9]", term.notebook)
        assert term.term in repr(term) and term.link in term._repr_html_()
    for word in ASKED.replace("\n", " ").split(", "):
        assert lk.glossary(word.strip()).text
    names = [name.lower() for term in lk.glossary() for name in (term.term, *term.aka)]
    assert len(names) == len(set(names))


def test_a_word_is_found_by_its_other_names_and_an_unknown_one_gets_the_nearest():
    assert lk.glossary(" PINNED  memory") == lk.glossary("pinned")
    assert "Jupyter" in lk.glossary("kernel").text
    with pytest.raises(ValueError, match="Unknown term 'kernal'; did you mean 'kernel'"):
        lk.glossary("kernal")
    with pytest.raises(ValueError, match=r"Unknown term 'xyzzy'; lk.glossary\(\) lists all"):
        lk.glossary("xyzzy")


# -- a GPU beside the CPU, and what the instruments print ------------------------------------------


SHEETS = {sheet.name: sheet for _, sheet in CARDS}
CHIPS = json.loads((DATA / "chips.json").read_text())


def test_the_rates_of_every_card_follow_from_its_chip_and_a_clock_that_is_possible():
    assert SHEETS.keys() == CHIPS.keys()
    for name, sheet in SHEETS.items():
        lanes = CHIPS[name]["sms"] * CHIPS[name]["lanes"]  # two operations each
        assert 1.2 < sheet.tflop_per_s["fp32"] * 1e3 / (lanes * 2) < 2.7, name


@pytest.mark.parametrize("name", ["B200", "T4", "L4", "GeForce RTX 4060", "P100 SXM2"])
def test_a_card_is_drawn_from_its_data_sheet(name):
    card, chip = SHEETS[name], CHIPS[name]
    figure = lk.anatomy(card.name, lk.recorded("workers-0").machine)
    [axes] = figure.axes
    said = " ".join(text.get_text() for text in [*figure.texts, *axes.texts])
    assert f"beside {chip['sms']} SMs" in said and f"{card.gb_per_s:,.0f} GB/s" in said
    squares = [patch for patch in axes.patches if patch.get_linewidth() == 0]
    assert len(squares) == chip["sms"] + 2 + 2  # cores of the recorded machine, and two pipes
    link = {3: 15.75, 4: 31.5, 5: 63.0}[chip["pcie"]] * chip.get("pcie_lanes", 16) / 16
    wide = [p.get_width() for p in squares if p.get_height() == 0.63][0]
    thin = [p.get_height() for p in squares if p.get_width() == 1.3][0]
    assert wide / thin == pytest.approx(card.gb_per_s / link)


@pytest.mark.parametrize("name", ["nvidia-smi", "profiler", "nsys", "wandb"])
def test_an_instruments_output_is_explained_part_by_part_and_says_where_it_is_from(name):
    view = json.loads((DATA / "annotated.json").read_text())[name]
    figure = lk.annotated(name)
    header = " ".join(text.get_text() for text in figure.texts)
    assert ("RECORDED on" if name == "wandb" else "PUBLISHED") in header
    parts = view.get("notes") or view["lanes"]
    assert len(parts) >= 3
    for n, (part, *_) in enumerate(parts, 1):
        assert f"{n} {part}" in re.sub(" +", " ", header)


def test_an_unknown_card_or_view_is_refused():
    with pytest.raises(ValueError, match="Unknown card 'A101'; available: "):
        lk.anatomy("A101", lk.recorded("workers-0").machine)
    with pytest.raises(ValueError, match="Unknown view 'htop'; available: nvidia-smi, profiler"):
        lk.annotated("htop")
