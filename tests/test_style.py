"""House rules that a linter does not know: short functions, one thing a line.

Limits are of the whole source. A line that must break one of them is better rewritten than excused here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "spotlessnet"
LONGEST_FUNCTION = 50
"""Lines of a body, its docstring left out."""

LONGEST_FILE = 400
TERNARIES = 2
"""In one line."""

SIZES = {"len", "numel", "size", "dim", "shape"}
"""Ways to count: `n, d = len(x), x.shape[1]` are two of a kind."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text(encoding="utf-8"))


def length(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]  # parsed from text


def kind(value: ast.expr) -> str:
    """What sort of thing is assigned: a call by its name, a count, a plain name, a literal, or a formula."""
    last = value
    while isinstance(last, ast.Subscript):
        last = last.value
    if isinstance(last, ast.Call):
        called = last.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "call")
        return "count" if name in SIZES else name
    if isinstance(last, ast.Attribute | ast.Name):
        return "count" if isinstance(last, ast.Attribute) and last.attr in SIZES else "name"
    if isinstance(last, ast.Constant | ast.List | ast.Dict | ast.UnaryOp):
        return "literal"
    return "formula"


def is_swap(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether a value reads what the line assigns: such values change together, which is what a tuple is for."""
    names = {ast.unparse(target) for target in targets}
    return any(ast.unparse(part) in names for value in values for part in ast.walk(value) if isinstance(part, ast.expr))


def unlike(tree: ast.AST) -> Iterator[ast.Assign]:
    """Assignments of several things of which one is a call and another is something else."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        [target, *_] = node.targets
        if not isinstance(target, ast.Tuple) or is_swap(target.elts, node.value.elts):
            continue
        kinds = {kind(value) for value in node.value.elts}
        if len(kinds) > 1 and kinds - {"count", "name", "literal", "formula"}:
            yield node


def test_functions_and_files_are_short():
    found = [
        f"{path}:{node.lineno} {node.name}: {length(node)} lines"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and length(node) > LONGEST_FUNCTION
    ]
    lines = {path: len((SOURCE / path).read_text(encoding="utf-8").splitlines()) for path, _ in trees()}
    found += [f"{path}: {count} lines" for path, count in lines.items() if count > LONGEST_FILE]
    assert found == []


def test_no_line_packs_ternaries():
    found = []
    for path, tree in trees():
        ternaries = [node for node in ast.walk(tree) if isinstance(node, ast.IfExp)]
        nested = [node for node in ternaries if any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse))]
        by_line = [node.lineno for node in ternaries]
        packed = {line for line in by_line if by_line.count(line) > TERNARIES}
        found += [f"{path}:{line}" for line in sorted(packed | {node.lineno for node in nested})]
    assert found == []


def test_no_tuple_assigns_unlike_things():
    assert [f"{path}:{node.lineno} {ast.unparse(node)}" for path, tree in trees() for node in unlike(tree)] == []


def test_the_rules_see_what_they_should():
    bad = ast.parse("a, b = f(x), y + 1\nc, d = g(), 0\ne, h = first.double(), len(x)")
    assert len(list(unlike(bad))) == 3
    good = ast.parse(
        "a, b = first.double(), second.double()\nn, d = len(x), x.shape[1]\nx, y = step(x, y), x\np, q = 0, 1\n"
    )
    assert list(unlike(good)) == []
