"""The table of element types: true to numpy and ONNX, and the only one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.base.element_types import (
    ELEMENT_TYPES,
    OF_NUMPY,
    OF_ONNX,
    ElementType,
    name_onnx_type,
)
from tests.support.places import ROOT
from tests.support.source_files import list_files, name_file

TABLE = "engine/base/element_types.py"
RUNTIME = ROOT / "tools" / "trimmed" / "runtime"
# Lists of types that say something else than what an element type is.
POLICY = {
    "engine/base/plan_options.py": "the precisions that a plan may have",
    "engine/distributed/mpi.py": "the types that ranks sum, by the names of numpy",
    "graphs/io/messages.py": "the fields of a message that have the numbers of a constant",
    "kernels/loops/integer_gemm.py": "the types of results of products of integers",
    "kernels/ops/integer_products.py": "the types that operands of integer layers must have",
    "kernels/vector_ir/block_integers.py": "the types of operands in signatures of compiled code",
    "kernels/vector_ir/integer_dots.py": "the types of operands in signatures of compiled code",
    "kernels/vector_ir/integer_windows.py": "the types of operands in signatures of compiled code",
    "kernels/vocabulary/instructions.py": "the types that each set of instructions computes with",
    "kernels/ops/movement.py": "the type as which an element is moved, by its bytes",
    "kernels/ops/quantization.py": "the types that ONNX's quantisation maps to",
    "kernels/ops/sampling/resize.py": "the integers that the mode linear takes",
    "tools/trimmed/selftest.py": "how exactly devices repeat losses, by the precision of a plan",
}
NAMES = {
    *ELEMENT_TYPES,
    *(t.onnx_name for t in ELEMENT_TYPES.values()),
    *(t.cpp for t in ELEMENT_TYPES.values() if t.cpp not in ("float", "double", "bool")),
    *(np.dtype(t.numpy).name for t in ELEMENT_TYPES.values()),
    *(np.dtype(t.numpy).str[1:] for t in ELEMENT_TYPES.values()),
}


def tables(path: Path, *kinds: type[ast.expr]) -> Iterator[int]:
    """Lines of dictionaries, tuples, lists and sets that name three element types or more.

    `kinds`: only of these; the tuples and lists of tests are samples of types.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        sides: list[list[ast.expr | None]] = []
        if not isinstance(node, ast.expr) or (kinds and not isinstance(node, kinds)):
            continue
        if isinstance(node, ast.Dict):
            sides = [node.keys, [*node.values]]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            sides = [[*node.elts]]
        for side in sides:
            if len({name for name in map(_named, side) if name}) >= 3:
                yield node.lineno


def _named(node: ast.expr | None) -> str | None:
    """The element type that an expression names: `"f32"`, `np.float32`, `TensorProto.FLOAT`."""
    value = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Attribute):
        value = node.attr.rstrip("_")
    return value if isinstance(value, str) and value in NAMES else None


@pytest.mark.parametrize("t", ELEMENT_TYPES.values(), ids=list(ELEMENT_TYPES))
def test_rows_are_those_of_numpy_and_onnx(t: ElementType) -> None:
    kinds = {"f": ("float", "half"), "i": ("int",), "u": ("unsigned",), "b": ("bool",)}
    assert np.dtype(t.numpy).itemsize == t.itemsize
    assert onnx.TensorProto.DataType.Name(t.onnx) == t.onnx_name
    if t.is_stored_only:  # numpy has none
        assert np.dtype(t.numpy) not in OF_NUMPY
        assert t.onnx not in OF_ONNX
        return
    assert t.kind in kinds[np.dtype(t.numpy).kind]
    assert onnx.helper.tensor_dtype_to_np_dtype(t.onnx) == np.dtype(t.numpy)
    assert t.name == f"{t.name[0]}{t.bits}" or t.kind == "bool"


def test_no_other_file_has_a_table() -> None:
    product = [*list_files("engine", "kernels", "graphs", "tools"), *RUNTIME.glob("*.py")]
    listeds = {name_file(p): list(tables(p)) for p in product if name_file(p) != TABLE}
    rows = list_files("tests", "bench", "tools/dev")
    listeds |= {name_file(p): list(tables(p, ast.Dict, ast.Set)) for p in rows}
    assert not {n: lines for n, lines in listeds.items() if lines and n not in POLICY}
    assert all(listeds[n] for n in POLICY), "a row that excuses nothing"


@pytest.mark.parametrize(
    "text",
    ['{"f32": 4, "f64": 8, "i64": 8}', "{1: np.float32, 7: np.int64, 9: np.bool_}",
     "(T.FLOAT, T.DOUBLE, T.INT64)", '["float32", "int64", "uint8"]'],
)  # fmt: skip
def test_a_second_table_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"X = {text}\n", "utf-8")
    assert list(tables(tmp_path / "other.py"))


def test_the_public_header_has_the_numbers_of_the_table() -> None:
    header = (RUNTIME / "model.h").read_text("utf-8")
    body = re.search(r"enum @name@_dtype \{(.*?)\}", header, re.S)
    assert body
    numbers = {n.lower(): int(v) for n, v in re.findall(r"@_(\w+) = (\d+)", body[1])}
    kept = {t.name: t for t in ELEMENT_TYPES.values() if t.kind != "half"}
    assert numbers.pop("bool") == kept.pop("b1").onnx
    assert numbers == {name: t.onnx for name, t in kept.items()}


def test_every_type_of_onnx_has_a_name_in_messages() -> None:
    """Those that nothing here has, such as INT4, have the name of the standard."""
    for name, code in onnx.TensorProto.DataType.items():
        if code:
            assert name_onnx_type(code) == OF_ONNX.get(code, name)
    assert name_onnx_type(99) == "ONNX type 99"
