"""How large labkit is: `python maintain/size.py [FOLDER ...]`.

Tokens are Python's own (`tokenize`), without comments, docstrings and layout: a number that neither
packing lines nor writing more comments changes. No test fails on it.
"""

from __future__ import annotations

import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BETWEEN = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}  # statements
LAYOUT = BETWEEN | {tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}


def measure(path: Path) -> Counter[str]:
    """Count the tokens and the lines of code of one file."""
    lines = []
    before = tokenize.ENCODING
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_docstring = token.type == tokenize.STRING and before in BETWEEN
            if token.type not in LAYOUT and not is_docstring:
                lines.append(token.start[0])
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
    return Counter(tokens=len(lines), code_lines=len(set(lines)))


def report(folder: str) -> None:
    """Print the figures of all Python files below `folder`."""
    files = [measure(path) for path in (ROOT / folder).rglob("*.py")]
    total = sum(files, Counter())
    a_line = total["tokens"] / total["code_lines"]
    print(f"{folder}: {total['tokens']:,} tokens in {len(files)} files, {a_line:.1f} a code line")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["labkit", "tests", "maintain"]:
        report(name)
