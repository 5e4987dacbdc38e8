"""The pages of notebooks/symptoms: one for every cause, whose code and links hold."""

import re

from test_house import ROOT

import labkit as lk
from labkit.diagnosis.body_rules import BESIDES
from labkit.diagnosis.findings import BESIDE_TRAINING, DEVICE_LIMIT, ISSUING, NEIGHBOUR
from labkit.diagnosis.hot_lines import COLLATE
from labkit.diagnosis.line_work import PERIODIC
from labkit.diagnosis.loop_rules import DOUBLE
from labkit.diagnosis.pasted import IMPORTS, names_read
from labkit.diagnosis.symptoms import (
    PAGE_OF,
    PAGES,
    in_json,
    in_words,
    page_of,
)

DIAGNOSIS = ROOT / "labkit" / "diagnosis"
FOLDER = ROOT / "notebooks" / "symptoms"
CAUSE = re.compile(  # an argument or a name of its own: one text, or either of two
    r"""(?:\bcause ?= ?|\b(?:Finding|finding_of|costs)\(\s*["\w.]+,\s*|"""
    r'''\b(?:PartOfLoop|late_batches|doubt)\(\s*)"([^"]+)"'''
    r"""(?: if [\w. ]+ else "([^"]+)")?"""
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}


def causes():
    """Return every cause that a verdict can state."""
    found = {COLLATE, DEVICE_LIMIT, DOUBLE, ISSUING, NEIGHBOUR, PERIODIC, *BESIDES}
    found |= BESIDE_TRAINING.keys()
    for path in DIAGNOSIS.glob("*.py"):
        for texts in CAUSE.findall(path.read_text(encoding="utf-8")):
            found |= set(filter(None, texts))
    return found


def test_every_cause_that_a_verdict_can_state_has_a_page_that_says_its_name():
    assert causes() == set(PAGE_OF), "give each a page in labkit/diagnosis/symptoms.py"
    for cause, page in PAGE_OF.items():
        assert " " not in cause and f"`{in_words(cause)}`" in TEXTS[page], cause


def test_a_cause_is_written_in_words_and_json_keeps_to_its_spelling():
    assert (in_words("slow_items"), in_json("slow_items")) == ("slow items", "slow_items")
    assert in_json("one_rank_is_slower") == "one rank is slower"


def test_the_index_leads_to_every_page_and_every_page_has_a_cause():
    assert TEXTS.keys() - {"README"} == set(PAGES)
    assert set(LINK.findall(TEXTS["README"])) == {f"{page}.md" for page in PAGES}


def test_the_code_of_a_page_compiles_and_its_links_resolve():
    links = set()
    for page, text in TEXTS.items():
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(code, page, "exec")
            assert not names_read(code) & {*IMPORTS, "F", "get_worker_info", "lk"}, (page, code)
        for name in re.findall(r'lk\.recorded\("([^"]+)"\)', text):
            assert lk.recorded(name).recorded
        for name in re.findall(r'lk\.published\("([^"]+)"\)', text):
            assert len(lk.published(name))
        links |= {link for link in LINK.findall(text) if not link.startswith("https://")}
    assert [link for link in links if not (FOLDER / link).is_file()] == []
    assert {f"img/{path.name}" for path in (FOLDER / "img").iterdir()} <= links


def test_a_verdict_links_to_its_page_in_words_and_in_a_notebook():
    found = lk.recorded("stall-2").diagnose()
    page = page_of(found.findings[0].cause)
    assert page == "symptoms/slow-items.md"
    assert found.advice.endswith(f"and {page}.")
    assert f"<a href='{page}'>{page}</a>" in found._repr_html_()
    assert found.to_dict()["findings"][0]["page"] == page
