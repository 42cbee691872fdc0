"""Facts about an op stand on its `Op`: outside of the families, tables of op names are patterns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, read_op_keys
from tests.support.places import ROOT

FEW = 3  # op names from which on a collection is a table
NAMES = frozenset(op.name for op in list_ops().values())
FAMILIES = ("kernels/ops/", "tools/dev/cases/", "engine/models/")  # declare ops, or make models
# Every other table, as `file: statement`, with the reason why it is not a fact for `Op`.
PATTERNS = {
    "engine/base/declared_homes.py: OP_HOMES": "an index that is written from the declarations",
    "engine/base/public_names.py: HOMES": "names of classes; some are also names of ops",
    "engine/onnxblock/optim.py: __all__": "names of blocks; some are also names of ops",
    "engine/training/statistics.py: _MOVING": "for devices, which read no declarations",
    "graphs/io/provenance.py: _read_traced": "how an exporter writes a batch norm that it folds",
    "graphs/io/reference.py: NEVER_FOLDED": "limits of the reference, of undeclared ops as well",
    "graphs/ir/symbols.py: _COMPARES": "nodes at which the size that decides is looked for",
    "graphs/offline/decoding.py: _BY_ROW": "the pattern of the scores that end a decoder",
    "graphs/offline/decoding.py: _Rewriting": "the nodes that are made",
    "graphs/offline/integer_head.py: KEEPING": "the pattern of a head",
    "graphs/offline/dropped_paths.py: _COPIES": "the pattern of a drawn mask",
    "graphs/offline/proximal.py: hold": "the nodes that are made",
    "graphs/offline/sample_rules.py: SampleRules": "the sums whose terms may be losses",
    "graphs/offline/sparse.py: _ELEMENTWISE": "the pattern of a bias that a node of its own adds",
    "graphs/passes/batchnorm.py: MAY_ADD": "what a pass may add",
    "graphs/passes/control.py: FORMS": "forms of control flow",
    "graphs/passes/grouped.py: RULES": "what a pass may add",
    "graphs/passes/integers.py: MAY_ADD": "what a pass may add",
    "graphs/passes/movement.py: _VIEWS": "what a pass joins",
    "graphs/passes/patterns.py: RULES": "patterns",
    "graphs/passes/quantised.py: (_PRODUCT, _CONV, _GATHER)": "what a pass may add",
    "graphs/passes/quantised.py: MAY_ADD": "what a pass may add",
    "graphs/passes/sequences.py: SEQUENCES": "forms of sequences",
    "graphs/passes/sizes.py: _INTEGERS": "the operators that sizes have",
    "kernels/loops/fold.py: FOLDS": "the folds that reductions run",
}


def names_in(node: ast.AST) -> frozenset[str]:
    """Return the op names that are elements or keys of a collection, or all words of a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = frozenset(name for _, name in read_op_keys(node.value))
        return words if words <= NAMES else frozenset()
    elements: list[ast.expr] = []
    if isinstance(node, ast.Dict):
        elements = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Set | ast.Tuple | ast.List):
        elements = node.elts
    actual = [e for x in elements for e in (x.elts if isinstance(x, ast.Tuple) else [x])]
    return NAMES & {e.value for e in actual if isinstance(e, ast.Constant)}


def tables(source: str) -> Iterator[str]:
    """Yield the name of each statement of a module that holds a table."""
    for statement in ast.parse(source).body:
        if any(len(names_in(node)) >= FEW for node in ast.walk(statement)):
            match statement:
                case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
                    yield ast.unparse(target)
                case _:
                    yield getattr(statement, "name", f"line {statement.lineno}")


def test_no_table_of_ops_is_new() -> None:
    """A fact about ops belongs to their declarations, as a field of `Op`; a pattern goes above."""
    distinct = set()
    for folder in ("engine", "graphs", "kernels", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if path.resolve() == path and not name.startswith(FAMILIES):
                distinct |= {f"{name}: {table}" for table in tables(path.read_text("utf-8"))}
    assert distinct == PATTERNS.keys()


@pytest.mark.parametrize(
    "source",
    [
        'SLOW = {"Conv", "Gemm", "MatMul"}',
        'SLOW: dict[str, int] = {"Conv": 1, "Gemm": 2, "MatMul": 3}',
        'SLOW = op_keys("Conv Gemm com.microsoft::FusedMatMul")',
        'SLOW = {("", "Conv"), ("", "Gemm"), ("com.microsoft", "FusedMatMul")}',
        'def SLOW(node):\n    return node.op in ("Conv", "Gemm", "MatMul")',
    ],
)
def test_tables_of_ops_are_found_in_any_form(source: str) -> None:
    assert list(tables(source)) == ["SLOW"]
    assert not list(tables(source.replace("Gemm", "Apple")))


def test_ops_with_kernels_of_products_declare_a_product() -> None:
    """Except for what no model contains: gradients and ops that passes make."""
    for op in list_ops().values():
        multiplies = any(template.multiply_adds for template in op.calls or ())
        if multiplies and op.domain != OURS and not op.is_for_training:
            assert op.product is not None, op.title


def test_products_are_named_after_an_op_that_computes_them_alone() -> None:
    for op in list_ops().values():
        if op.product is not None:
            assert ("", op.product.of) in list_ops(), op.title
            if op.product.factors.are_integers and op.product.is_alone:
                assert op.is_of_integers, op.title


def test_roles_are_of_inputs_that_an_op_has() -> None:
    for op in list_ops().values():
        if op.inputs is not None:
            assert all(place < op.inputs[1] for place in op.roles), op.title
