"""The pages of notebooks/symptoms: one for every cause, whose code and links hold."""

import ast
import itertools
import re
from pathlib import Path

from test_house import ROOT

import labkit as lk
from labkit.diagnosis import findings, judge  # noqa: F401 - which has all rules

FOLDER = ROOT / "notebooks" / "symptoms"
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES_OF_NONE = {"out-of-memory", "nan", "uneven-shards", "hang"}  # what no verdict says
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}


IMPORTED = {"torch", "os", "shutil", "np", "nn", "F", "Image", "lk", "get_worker_info"}
IMPORTED |= {"BatchSampler", "DataLoader", "RandomSampler"}


def imports_missing(code):
    """The names of others that some code reads, and does not import."""
    nodes = [*ast.walk(ast.parse(code))]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    imported = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return read & IMPORTED - {each.asname or each.name for node in imported for each in node.names}


# What is made of the kind of a line; `test_golden.py` looks at their pages
OTHERWISE_NAMED = {"python", "logging", "waiting", "loader"}


def is_page(text):
    """Whether a text is the address of a page."""
    return isinstance(text, str) and bool(re.fullmatch(r"symptoms/[\w-]+\.md", text))


def literals(node):
    """The texts and the names that some code holds."""
    nodes = [*ast.walk(node)]
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names | {each.value for each in nodes if isinstance(each, ast.Constant)}


SOURCES = [ast.parse(path.read_text()) for path in (ROOT / "labkit/diagnosis").rglob("*.py")]
CAUSES_OF = {
    page: re.findall("`(.*?)`", re.search(r"(?m)^\*In a verdict: (.*)", text).group(1))
    for page, text in TEXTS.items()
    if "*In a verdict: `" in text
}


def test_a_cause_stands_beside_its_page_and_the_page_says_its_name():
    functions = [node for each in SOURCES for node in each.body if hasattr(node, "args")]
    for page, causes in CAUSES_OF.items():
        for cause in {each.replace(" ", "_") for each in causes} - OTHERWISE_NAMED:
            stated = [literals(each) for each in functions if cause in literals(each)]
            pages = {f"symptoms/{page}.md", "unsure" if page == "no-verdict" else None} - {None}
            assert any(pages & each for each in stated), cause


def test_each_cause_that_a_rule_names_is_on_a_page():
    rules = itertools.chain(*findings.RULES.values())
    named = {name.replace("_", " ") for _, names in rules for name in names}
    assert named <= {*itertools.chain(*CAUSES_OF.values())}


def test_the_index_leads_to_every_page_and_every_page_has_a_cause():
    named = {Path(page).stem for page in set().union(*map(literals, SOURCES)) if is_page(page)}
    assert named == CAUSES_OF.keys()
    pages = named | PAGES_OF_NONE
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
