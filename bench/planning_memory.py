"""Memory of planning: the growth of a process from the first byte of a model to its plan.

A row is a model in a process of its own that has imported everything before; kernels are not
compiled.  Of workloads `forward` is the model as exporters write it, whose weights are constants of
its plan, `artifacts` what `generate_artifacts` takes for it, and `training` the plan of the
training model that this writes.  The others ask for as much as the limits let them.

Of large models with sparse files `lora` is `Trainer.from_onnx(lora=)`, `full` the artifacts that
train all of it, and `adapted` a model with adapters that is written and merged again.

`model` is the size of the file and of its external data, `largest` the size of its largest tensor,
`peak` the rise of the anonymous memory of the process (RssAnon), and `allowed` 1.3 times the
largest tensor, plus twice the rest of the file without weights, plus 500 MB.  All are MB.  Pages of
mapped files do not count: the system takes them back.  A row whose peak is above is WRONG.  Linux
only: it asks /proc for the peak.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper, parser

from bench import large_models
from bench.measuring import MB, anonymous_growth, call_fresh
from bench.rows import WRONG, Bench, Cells
from engine.graphs.io import convert, onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.ops.registry import list_ops, list_templates
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.trimmed.targets import resolve

MODELS = ("mlp", "cnn", "mobilenet", "resnet50", "vit", "minilm", "gpt2", "lstm")
OPSETS = 'ir_version: 9, opset_import: ["" : 17, "own" : 1]'


def chain(nodes: int, op: str, letters: int = 0, size: int = 2) -> bytes:
    """Nodes of one op, one after another, whose names have so many letters.

    The op reads a constant too, where it has two inputs; c is the constant.
    """
    names = ["x", *(f"v{i}{'o' * letters}" for i in range(1, nodes)), "y"]
    steps: list[NodeProto] = []
    for i in range(nodes):
        ins = [names[i], "c"] if op in ("MatMul", "LayerNormalization") else names[i : i + 1]
        steps.append(helper.make_node(op, ins, [names[i + 1]], f"n{i}{'a' * letters}"))
    shape = [size, size] if op == "MatMul" else [size]
    constant = numpy_helper.from_array(np.ones(shape, np.float32), "c")
    return write_model(steps, constant)


def make_folded(count: int, size: int) -> bytes:
    """Products with matrices that are each computed of one and another number."""
    steps, value = [], "x"
    constants = [numpy_helper.from_array(np.ones((size, size), np.float32), "c")]
    for i in range(count):
        constants.append(numpy_helper.from_array(np.full((1, 1), i, np.float32), f"b{i}"))
        steps.append(helper.make_node("Add", ["c", f"b{i}"], [f"w{i}"]))
        steps.append(helper.make_node("MatMul", [value, f"w{i}"], [f"v{i}"]))
        value = f"v{i}"
    steps.append(helper.make_node("Sin", [value], ["y"]))
    return write_model(steps, *constants, size=size)


def write_model(steps: list[NodeProto], *constants: TensorProto, size: int = 2) -> bytes:
    """Return the bytes of a model from x, float[size, size], to y."""
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(steps, "m", given, made, list(constants))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    data: bytes = model.SerializeToString()
    return data


def parse_model(text: str) -> bytes:
    """Return the bytes of a model in the text form of ONNX."""
    data: bytes = parser.parse_model(f"<{OPSETS}> m {text}").SerializeToString()
    return data


def make_loop(trips: int) -> bytes:
    return parse_model(
        f"(float[2, 2] x) => (float[2, 2] y) {{ n = Constant <value = int64 {{{trips}}}> () "
        "y = Loop(n, , x) <body = b (int64 i, bool c, float[2, 2] s) => (bool k, float[2, 2] t) "
        "{ k = Identity(c) a = Sin(s) t = MatMul(a, s) }> }"
    )


def make_functions(levels: int) -> bytes:
    text = f"(float[2, 2] x) => (float[2, 2] y) {{ y = own.f{levels - 1}(x) }}"
    for k in range(levels):
        body = f"t = own.f{k - 1}(a) b = own.f{k - 1}(t)" if k else "b = Sin(a)"
        text += f' <opset_import: ["" : 17, "own" : 1], domain: "own"> f{k} (a) => (b) {{ {body} }}'
    return parse_model(text)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "functions_of_65536_nodes": lambda: make_functions(17),
    "loop_of_33000_trips": lambda: make_loop(33_000),
    "chain_of_50000_nodes": lambda: chain(50_000, "Sin"),
    "products_50000": lambda: chain(50_000, "MatMul"),
    "names_of_a_megabyte": lambda: chain(100, "LayerNormalization", MB),
    "folded_199_MB": lambda: make_folded(384, 360),
    "transform_of_3500": lambda: parse_model(
        "(float[1, 3500, 1] x) => (float[a, b, c] y) { y = DFT <axis = 1> (x) }"
    ),
    "pad_by_8_million": lambda: parse_model(
        "(float[2, 2] x) => (float[a, b] y) "
        "{ p = Constant <value = int64[4] {0, 0, 0, 8000000}> () "
        'y = Pad <mode = "edge"> (x, p) }'
    ),
    "resize_to_2_million": lambda: parse_model(
        "(float[1, 1, 1, 2] x) => (float[a, b, c, d] y) "
        "{ z = Constant <value = int64[4] {1, 1, 1, 990000}> () "
        'y = Resize <mode = "cubic"> (x, , , z) }'
    ),
}


LARGE: dict[str, tuple[str, int, int, bool]] = {  # kind, layers, side, whether inline
    "external_1750_MB": ("lora", 26, 4096, False),
    "inline_1_GB": ("lora", 16, 4096, True),
    "inline_1_GB_full": ("full", 16, 4096, True),
    "one_tensor_of_1_GB": ("full", 1, 16384, False),
    "merged_1_GB": ("adapted", 16, 4096, False),
}


def measure_growth(kind: str, path: Path) -> int:
    """Return how many bytes this process grows at most while it plans a model, or makes artifacts.

    kind: as the rows say.  Batches have 4 samples, and so has every symbolic dimension.
    """
    assert list_ops()  # what is imported when it is first asked for
    assert list_templates()
    assert convert.inline_functions is not None
    target = resolve("x86-64-v3").target
    if kind in ("lora", "full", "adapted"):
        return large_models.measure_growth(kind, path, path.parent / "out")
    with anonymous_growth() as growth:
        if kind == "artifacts":
            write_artifacts(onnx_io.load(path), path.parent)
        else:
            graph = onnx_io.load(path)
            shapes = {
                name: tuple(d if isinstance(d, int) else 4 for d in t.shape)
                for name, t in graph.inputs.items()
            }
            if kind == "training":
                batch = WORKLOADS[path.parent.name].batch(4)
                shapes |= {n: a.shape for n, a in zip(graph.inputs, batch, strict=False)}
            make_plan(graph, shapes, target=target, threads=2)
    return growth[0]


def measure_amounts(path: Path) -> tuple[int, int, int]:
    """Return the bytes of a model, of its largest tensor, and of the rest of its file without
    weights.
    """
    held = [a.nbytes for a in onnx_io.load(path).initializers.values()]
    beside = sum(
        (path.parent / name).stat().st_size for name in onnx_io.list_external_files(str(path))
    )
    size = path.stat().st_size
    return size + beside, max(held, default=0), max(0, size + beside - sum(held))


def measure_row(kind: str, path: Path) -> Cells:
    """Measure in a new process; return the cells."""
    size, largest, rest = measure_amounts(path)
    allowed = round(1.3 * largest) + 2 * rest + 500 * MB
    try:
        peak = call_fresh(measure_growth, kind, path)
    except Exception as error:  # of any kind: the row says so, and the others go on
        return kind, size / MB, largest / MB, None, allowed / MB, f"{WRONG}: {error}"
    verdict = f"{WRONG}: more than is allowed" if peak > allowed else None
    return kind, *(n / MB for n in (size, largest, peak, allowed)), verdict


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the rows of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name) / "forward.onnx"
        path.parent.mkdir()
        if name in LARGE:
            kind, layers, side, inline = LARGE[name]
            yield measure_row(kind, large_models.make(path.parent, layers, side, inline=inline))
            return
        if name in HOSTILE:
            path.write_bytes(HOSTILE[name]())
        else:
            onnx_io.save(WORKLOADS[name].build(), path)
        yield measure_row("forward", path)
        if name not in HOSTILE:
            yield measure_row("artifacts", path)
            yield measure_row("training", path.with_name("training_model.onnx"))


BENCHES = (
    Bench(
        "planning_memory",
        "how far a process grows while it plans workloads, and models that ask for much; in MB",
        {name: name for name in [*MODELS, *HOSTILE, *LARGE]},
        ("kind", "model:.1f", "largest:.1f", "peak:.1f", "allowed:.1f", "verdict"),
        measure,
    ),
)
