"""Schemas of ONNX's operators, against which the nodes of a model are checked.

python -m engine.tools.dev.schemas       writes graphs/io/schemas.txt

A line is an op, the opset that brought this form of it, and the schema (`Schema` of
graphs/io/schemas.py), for every form of an op that a model of a supported opset can have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from engine.graphs.io import schemas
from engine.graphs.io.opsets import FIRST, LAST


def list_forms() -> Iterator[tuple[str, int, schemas.Schema]]:
    """Yield every form of every op of ONNX's domain, with the opset that brought it."""
    for op in sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}):
        versions = {}
        for opset in range(FIRST, min(LAST, onnx.defs.onnx_opset_version()) + 1):
            form = schemas.Schema.of_onnx(op, "", opset)
            if form is not None:
                versions[onnx.defs.get_schema(op, opset, "").since_version] = form
        yield from ((op, since, schema) for since, schema in versions.items())


def list_lines() -> Iterator[str]:
    """Return the lines of the table."""
    return (f"{op}\t{since}\t{schema}\n" for op, since, schema in list_forms())


def main() -> None:
    """Write the table."""
    made = "".join(list_lines())
    path = Path(schemas.__file__).with_name("schemas.txt")
    path.write_text(made, "utf-8")
    print(f"{made.count(chr(10))} schemas in {path.name}")


if __name__ == "__main__":
    main()
