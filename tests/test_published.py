"""Other people's numbers, each with its card and source; the glossary; views."""

import re

import pytest

import labkit as lk
from labkit.results.published import FOLDER

TABLES = lk.published()


@pytest.mark.parametrize("name", TABLES["name"])
def test_every_published_row_has_a_card_and_a_source_at_a_commit(name):
    table = lk.published(name)
    source = r"https://github.com/[^/]+/[^/]+/(blob|tree)/\w{7,40}/.+"
    assert table["source"].str.fullmatch(source).all()
    assert table["card"].all() and table.notna().all(axis=None)
    assert all(table.attrs[key] for key in ("what", "how", "date", "licence"))


def test_every_file_is_listed_and_an_unknown_name_is_answered_with_those_there_are():
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(TABLES["name"])
    with pytest.raises(ValueError, match="'zeus'; available: matmul, remote-reads, batch-power"):
        lk.published("zeus")


# -- the glossary ---------------------------------------------------------------------------------

ASKED = """kernel, launch, stream, occupancy, warp, SM, DMA, pinned, pageable, write-allocate, HBM,
arithmetic intensity, roofline, Tensor Core, VRAM, PCIe, NVLink, allocator, autocast, loss scaling,
graph break, CUDA graph, all-reduce, MFU, MBU, KV cache, prefill, decode, prefetch, collate,
worker, straggler"""


def test_every_word_is_explained_in_one_to_four_sentences_with_a_link_and_a_notebook():
    names = []
    for term in lk.glossary():
        assert 1 <= len(re.findall(r"[.?!](?= [A-Z]|$)", term.text)) <= 4, term.term
        assert term.link.startswith("https://") and re.fullmatch("0[0-9]", term.notebook)
        assert term.term in repr(term) and term.link in term._repr_html_()
        names += map(str.lower, (term.term, *term.aka))
    assert len(names) == len(set(names))
    for word in re.split(r",\s", ASKED):
        assert lk.glossary(word).text


def test_a_word_is_found_by_its_other_names_and_an_unknown_one_gets_the_nearest():
    assert lk.glossary(" PINNED  memory") == lk.glossary("pinned")
    with pytest.raises(ValueError, match="Unknown term 'kernal'; did you mean 'kernel'"):
        lk.glossary("kernal")
    with pytest.raises(ValueError, match=r"Unknown term 'xyzzy'; lk.glossary\(\) lists all"):
        lk.glossary("xyzzy")
