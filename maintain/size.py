"""How large labkit is, and how ordinary its lines are: `python maintain/size.py [FOLDER ...]`.

Tokens are Python's own (`tokenize`), without comments, docstrings and layout: a number that neither
packing lines nor writing more comments changes. No test fails on it.
"""

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


def measure(path: Path) -> Counter:
    """Count one file: tokens, code lines, `Any`, formatter switched off, packed assignments."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = docstring_starts(tree)
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start not in docstrings:
            lines.append(token.start[0])
    found = Counter(tokens=len(lines), code_lines=len(set(lines)), files=1)
    found["Any"] = sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
    found["formatter off"] = text.count("# fmt: off") + text.count("# fmt: skip")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            found["packed assignments"] += isinstance(node.value, ast.Tuple)
    return found


def names_and_nodes(path: Path) -> tuple[list[int], list[int]]:
    """Return the lengths of names that are assigned, and the AST nodes of simple statements."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = []
    nodes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(len(node.id))
        elif isinstance(node, ast.arg):
            names.append(len(node.arg))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(len(node.name))
        if isinstance(node, SIMPLE):
            nodes.append(sum(1 for _ in ast.walk(node)))
    return names, nodes


def report(folder: str) -> None:
    """Print the figures of all Python files below `folder`, and its largest files."""
    total = Counter()
    sizes = []
    names: list[int] = []
    nodes: list[int] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        found = measure(path)
        total += found
        sizes.append((found["tokens"], path.relative_to(ROOT)))
        more_names, more_nodes = names_and_nodes(path)
        names += more_names
        nodes += more_nodes
    if not sizes:
        raise SystemExit(f"no Python files below {folder}")
    tenth = statistics.quantiles(nodes, n=10)[8] if len(nodes) > 1 else nodes[0]
    print(f"{folder}: {total['tokens']:,} tokens in {total['files']} files")
    print(f"  tokens a code line   {total['tokens'] / total['code_lines']:.1f}")
    print(f"  mean name            {statistics.mean(names):.1f} characters")
    print(f"  nodes a statement    {statistics.median(nodes):.0f} median, {tenth:.0f} p90")
    for what in ("Any", "formatter off", "packed assignments"):
        print(f"  {what:20} {total[what]}")
    for tokens, path in sorted(sizes, reverse=True)[:5]:
        print(f"  {tokens:6,}  {path}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["labkit", "tests", "maintain"]:
        report(name)
