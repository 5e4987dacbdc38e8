"""The pages of notebooks/symptoms: one for every cause, whose code and links hold."""

import ast
import re
from pathlib import Path

from test_house import ROOT

import labkit as lk
from labkit.diagnosis.findings import PAGE_OF, in_words

FOLDER = ROOT / "notebooks" / "symptoms"
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES_OF_NONE = {"out-of-memory", "nan", "uneven-shards"}  # what no verdict says
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}


IMPORTED = {"torch", "os", "shutil", "np", "nn", "F", "Image", "lk", "get_worker_info"}
IMPORTED |= {"BatchSampler", "DataLoader", "RandomSampler"}


def imports_missing(code):
    """The names of others that some code reads, and does not import."""
    nodes = [*ast.walk(ast.parse(code))]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return read & IMPORTED - {each.asname or each.name for node in imported for each in node.names}


def test_every_cause_that_a_verdict_can_state_has_a_page_that_says_its_name():
    for cause, page in PAGE_OF.items():
        assert f"`{in_words(cause)}`" in TEXTS[Path(page).stem], cause


def test_the_index_leads_to_every_page_and_every_page_has_a_cause():
    pages = {Path(page).stem for page in PAGE_OF.values()} | PAGES_OF_NONE
    assert TEXTS.keys() - {"README"} == pages
    assert set(LINK.findall(TEXTS["README"])) == {f"{page}.md" for page in pages}


def test_the_code_of_a_page_compiles_and_its_links_resolve():
    links = set()
    for page, text in TEXTS.items():
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            assert not imports_missing(code), (page, code)
        for name in re.findall(r'lk\.recorded\("([^"]+)"\)', text):
            assert lk.recorded(name).recorded
        for name in re.findall(r'lk\.published\("([^"]+)"\)', text):
            assert len(lk.published(name))
        links |= {link for link in LINK.findall(text) if not link.startswith("https://")}
    assert [link for link in links if not (FOLDER / link).is_file()] == []
    assert {f"img/{path.name}" for path in (FOLDER / "img").iterdir()} <= links


def test_a_verdict_links_to_its_page_in_words_and_in_a_notebook():
    found = lk.recorded("stall-2").diagnose()
    page = found.to_dict()["findings"][0]["page"]
    assert page == "symptoms/slow-items.md"
    assert found.advice.endswith(f" See {page}.")
    assert f"<a href='{page}'>{page}</a>" in found._repr_html_()
