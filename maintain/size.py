"""How large labkit is: `python maintain/size.py [FOLDER ...]`.

Tokens are Python's own (`tokenize`), without comments, docstrings and layout: a number that neither
packing lines nor writing more comments changes. No test fails on it.
"""

from __future__ import annotations

import ast
import io
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
    """Count the tokens and the lines of code of one file."""
    text = path.read_text(encoding="utf-8")
    docstrings = docstring_starts(ast.parse(text))
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start not in docstrings:
            lines.append(token.start[0])
    return Counter(tokens=len(lines), code_lines=len(set(lines)))


def report(folder: str) -> None:
    """Print the figures of all Python files below `folder`, and its largest files."""
    files = {path: measure(path) for path in (ROOT / folder).rglob("*.py")}
    if not files:
        raise SystemExit(f"no Python files below {folder}")
    total = sum(files.values(), Counter())
    a_line = total["tokens"] / total["code_lines"]
    print(f"{folder}: {total['tokens']:,} tokens in {len(files)} files, {a_line:.1f} a code line")
    largest = sorted(files, key=lambda path: files[path]["tokens"], reverse=True)
    for path in largest[:LARGEST]:
        print(f"  {files[path]['tokens']:6,}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["labkit", "tests", "maintain"]:
        report(name)
