"""How large labkit is, and how ordinary its lines are: `python maintain/size.py [FOLDER ...]`.

Tokens are Python's own (`tokenize`), without comments, docstrings and layout: a number that neither
packing lines nor writing more comments changes. No test fails on it.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.Raise, ast.Assert)
LARGEST = 5  # files that are named


def docstring_starts(tree: ast.AST) -> set[tuple[int, int]]:
    """Return (line, column) of every docstring."""
    starts = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        if isinstance(getattr(body[0].value, "value", None), str):
            starts.add((body[0].lineno, body[0].col_offset))
    return starts


def measure(path: Path) -> Counter[str]:
    """Count one file: tokens, code lines, `Any`, formatter switched off, packed assignments."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = docstring_starts(tree)
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start not in docstrings:
            lines.append(token.start[0])
    found = Counter(tokens=len(lines), code_lines=len(set(lines)))
    found["formatter off"] = text.count("# fmt: off") + text.count("# fmt: skip")
    for node in ast.walk(tree):
        found["Any"] += isinstance(node, ast.Name) and node.id == "Any"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            found["packed assignments"] += isinstance(node.value, ast.Tuple)
    return found


def name_given(node: ast.AST) -> str | None:
    """Return the name that a node assigns or defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


def report(folder: str) -> None:
    """Print the figures of all Python files below `folder`, and its largest files."""
    files = {path: measure(path) for path in (ROOT / folder).rglob("*.py")}
    if not files:
        raise SystemExit(f"no Python files below {folder}")
    total = sum(files.values(), Counter())
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = list(filter(None, map(name_given, nodes)))
    sizes = [sum(1 for _ in ast.walk(node)) for node in nodes if isinstance(node, SIMPLE)]
    tenth = statistics.quantiles(sizes, n=10)[-1]
    print(f"{folder}: {total['tokens']:,} tokens in {len(files)} files")
    print(f"  tokens a code line   {total['tokens'] / total['code_lines']:.1f}")
    print(f"  mean name            {statistics.mean(map(len, names)):.1f} characters")
    print(f"  nodes a statement    {statistics.median(sizes):.0f} median, {tenth:.0f} p90")
    for what in ("Any", "formatter off", "packed assignments"):
        print(f"  {what:20} {total[what]}")
    largest = sorted(files, key=lambda path: files[path]["tokens"], reverse=True)
    for path in largest[:LARGEST]:
        print(f"  {files[path]['tokens']:6,}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["labkit", "tests", "maintain"]:
        report(name)
