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


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_says_who_measured_what_on_which_hardware(name):
    found = lk.published(name)
    for field in (
        "title",
        "hardware",
        "measured",
        "repository",
        "commit",
        "path",
        "licence",
        "date",
    ):
        assert getattr(found, field), field
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


def test_the_law_of_waiting_holds_on_an_a100_within_one_percent():
    slow = lk.published("remote-reads").where(phase="reads delayed")
    assert len(slow) == 2
    for row in slow:
        assert row["step_ms"] == pytest.approx(
            row["batch"] * row["read_ms"] / row["workers"], rel=0.01
        )


@pytest.mark.parametrize(
    ("name", "case", "within"),
    [
        ("inference", {"card": "V100", "precision": "FP32"}, 0.21),
        ("inference", {"card": "V100", "precision": "AMP"}, 0.20),
        ("inference", {"card": "T4", "precision": "FP32"}, 0.21),
        ("inference", {"card": "T4", "precision": "AMP"}, 0.31),
        *(("batch-power", {"card": card}, 0.33) for card in ("V100", "A40", "P100")),
        *(("batch-power", {"card": card, "model": "resnet50"}, 0.08) for card in ("V100", "A40")),
    ],
)
def test_a_fixed_part_and_a_part_per_sample_describe_real_cards(name, case, within):
    knee = lk.published(name).knee(**case)
    assert 0 < knee.misfit < within
    assert knee.source.startswith("PUBLISHED") and "PUBLISHED" in repr(knee)
    assert "PUBLISHED" in texts(knee.plot())


def test_the_knee_of_a_small_model_is_far_above_that_of_a_large_one_on_every_card():
    power = lk.published("batch-power")
    for card in ("V100", "A40", "P100", "Quadro RTX 6000"):
        assert power.knee(card=card).batch_size > 100
        assert power.knee(card=card, model="resnet50").n_half < 8


def ladder():
    found = lk.Ladder()
    for step in range(3):
        found.add(f"step {step}", lk.recorded(f"capstone-{step}"))
    return found


BESIDE = {  # what may stand beside, and a text that it brings
    "matmul": (lambda: lk.recorded("roofline"), "GFLOP/s"),
    "remote-reads": (lambda: [lk.recorded("textbook-0"), lk.recorded("workers-2")], ""),
    "batch-power": (lambda: [lk.recorded(f"batch-{n}") for n in (1, 16, 64)], ""),
    "inference": (lambda: [lk.recorded(f"batch-{n}") for n in (1, 16, 64)], ""),
    "mixed-precision": (lambda: [lk.recorded(f"precision-{n}") for n in ("fp32", "bf16")], "x"),
    "compile": (lambda: [lk.recorded("compile-off"), lk.recorded("compile-default")], "x"),
    "llm-ladder": (ladder, "x"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_own_points_stand_beside_in_another_mark(name):
    give, text = BESIDE[name]
    own = give()
    figure = lk.published(name).plot(beside=own)
    assert "RECORDED: Intel" in texts(figure) and "measured here" not in texts(figure)
    marks = {
        line.get_marker() for axes in figure.axes for line in axes.lines if len(line.get_xdata())
    }
    assert {"D", "s"} <= marks
    assert not text or any(text in t.get_text() for axes in figure.axes for t in axes.texts)
    runs = list(own.runs.values()) if isinstance(own, lk.Ladder) else own
    for run in runs if isinstance(runs, list) else [runs]:
        run.recorded = False
    assert "measured here: Intel" in texts(lk.published(name).plot(beside=own))


def test_what_cannot_stand_beside_is_refused_with_what_to_give():
    run = lk.recorded("workers-2")
    with pytest.raises(ValueError, match=r"give lk.sweep\(pipeline, precision="):
        lk.published("mixed-precision").plot(beside=run)
    with pytest.raises(ValueError, match="give what lk.measure"):
        lk.published("matmul").plot(beside=run)
    with pytest.raises(ValueError, match="nothing that is measured here compares"):
        lk.published("power-limits").plot(beside=run)
    with pytest.raises(ValueError, match=r"No row with card='V200'; there are \['V100'"):
        lk.published("batch-power").plot(card="V200")
    with pytest.raises(ValueError, match="Unknown column 'gpu'"):
        lk.published("batch-power").where(gpu="V100")
    with pytest.raises(ValueError, match="Unknown measurements 'zeus'; available: matmul"):
        lk.published("zeus")
    with pytest.raises(ValueError, match="several times for a batch"):
        lk.published("batch-power").knee()


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


@pytest.mark.parametrize("card", [sheet for _, sheet in CARDS], ids=lambda sheet: sheet.name)
def test_a_card_is_drawn_from_its_data_sheet(card):
    chip = json.loads((DATA / "chips.json").read_text())[card.name]
    # The sheet's FP32 rate follows from lanes, two operations each, and a clock that is possible
    clock_ghz = card.tflop_per_s["fp32"] * 1e3 / (chip["sms"] * chip["lanes"] * 2)
    assert 1.2 < clock_ghz < 2.7
    figure = lk.anatomy(card.name, lk.recorded("workers-0").machine)
    [axes] = figure.axes
    said = " ".join(text.get_text() for text in [*figure.texts, *axes.texts])
    assert f"beside {chip['sms']} SMs" in said and f"{card.gb_per_s:,.0f} GB/s" in said
    squares = [patch for patch in axes.patches if patch.get_linewidth() == 0]
    assert len(squares) == chip["sms"] + 2 + 2  # cores of the recorded machine, and two pipes
    link = {3: 15.75, 4: 31.5, 5: 63.0}[chip["pcie"]]
    wide = [p.get_width() for p in squares if p.get_height() == 0.63][0]
    thin = [p.get_height() for p in squares if p.get_width() == 1.3][0]
    assert wide / thin == pytest.approx(card.gb_per_s / link)


def test_an_unknown_card_is_refused():
    with pytest.raises(ValueError, match="Unknown card 'A101'; available: H200 SXM, "):
        lk.anatomy("A101", lk.recorded("workers-0").machine)


@pytest.mark.parametrize("name", ["nvidia-smi", "profiler", "nsys", "wandb"])
def test_an_instruments_output_is_explained_part_by_part_and_says_where_it_is_from(name):
    view = json.loads((DATA / "annotated.json").read_text())[name]
    figure = lk.annotated(name)
    [axes] = figure.axes
    header = " ".join(text.get_text() for text in figure.texts)
    assert ("RECORDED on" if name == "wandb" else "PUBLISHED") in header
    numbers = {text.get_text() for text in [*axes.texts, *axes.get_yticklabels()]}
    parts = view.get("notes") or view["lanes"]
    assert len(parts) >= 3
    for n, (part, *_) in enumerate(parts, 1):
        assert f"{n} {part}" in re.sub(" +", " ", header)
        assert name == "wandb" or {str(n), f"{n}  {part}"} & numbers
    with pytest.raises(ValueError, match="Unknown view 'htop'; available: nvidia-smi, profiler"):
        lk.annotated("htop")
