"""Limits: what asks for too much is refused before the work is done, and a switch allows more."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import onnx
import pytest
from onnx import parser

from engine.base import limits
from engine.base.errors import LETTERS, EngineError, LimitError, ModelError, suggest_nearest
from engine.checkpoint import onnx_adapter, safetensors
from engine.graphs.io import convert, onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes import control, unrolling
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.plan.plan import Plan
from engine.tools.trimmed.targets import resolve
from tests.support.places import DOCS


def test_the_page_of_limits_is_their_table() -> None:
    page = (DOCS / "limits.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z_]+) \| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, limits.PREFIX + name, row.describe(), row.meaning)
        for name, row in limits.LIMITS.items()
    ]
    assert re.findall(r"^- \*\*([A-Z_]+)\*\*: ", page, re.MULTILINE) == [*limits.LIMITS]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NODES", "", 100_000),
        ("NODES", "300", 300),
        ("PLAN_BYTES", "1.5 GB", 1_500_000_000),
        ("PLAN_BYTES", "4096", 4096),
        ("NODES", "1_0", "EDGEGRAD_MAX_NODES='1_0': expected a whole number of nodes"),
        ("NODES", "0", "EDGEGRAD_MAX_NODES='0': expected 1 to"),
        ("NODES", "9" * 5000, "EDGEGRAD_MAX_NODES='999"),
        (
            "PLAN_BYTES",
            "4 XB",
            "EDGEGRAD_MAX_PLAN_BYTES='4 XB': expected a number of bytes, such as '48 MB'",
        ),
        ("NODE", "4", "unknown switch EDGEGRAD_MAX_NODE; .*nearest: 'EDGEGRAD_MAX_NODES'"),
    ],
)
def test_switches_of_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: int | str
) -> None:
    monkeypatch.setenv(limits.PREFIX + name, value)
    if isinstance(expected, int):
        assert limits.limit(name) == expected
    else:
        with pytest.raises(EngineError, match=expected):
            limits.limit("NODES" if name == "NODE" else name)


def test_the_error_names_limit_value_and_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        LimitError, match=r"^Loop 'l': 300000 nodes; .* 100000\. .* EDGEGRAD_MAX_NODES"
    ) as e:
        limits.check("NODES", 300_000, "Loop 'l'")
    assert (e.value.limit, e.value.value, e.value.most) == ("NODES", 300_000, 100_000)
    assert isinstance(e.value, MemoryError)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "300000")
    limits.check("NODES", 300_000, "Loop 'l'")
    with pytest.raises(LimitError, match="10\\*\\*18 or more nodes"):
        limits.check("NODES", 10**10_000, "Loop 'l'")


def test_messages_stay_short() -> None:
    """A name of ten million letters is cut, and compared with no other."""
    name = "n" * 10_000_000
    text = str(
        ModelError(f"{name!r}: two nodes make it; expected one{suggest_nearest(name, [name, 'n'])}")
    )
    assert len(text) < LETTERS + 50
    assert text.startswith("'nnn")
    assert text.endswith("two nodes make it; expected one")
    assert "letters ...]" in text


# --- unrolling

HEAD = '<ir_version: 9, opset_import: ["" : 17]> m (float[2, 2] x) => (float[a, b] y) '
PASSED = "=> (bool k, float[2, 2] t) { k = Identity(c)"


def loop(trips: int, body: str) -> str:
    """A Loop of a known number of trips, whose body hands its condition on."""
    return (
        f"{HEAD} {{ n = Constant <value = int64 {{{trips}}}> () y = Loop(n, , x) "
        f"<body = b (int64 i, bool c, float[2, 2] s) {PASSED} {body} }}> }}"
    )


INNER = (
    "m = Constant <value = int64 {1000}> () t = Loop(m, , s) <body = d "
    "(int64 j, bool e, float[2, 2] u) => (bool f, float[2, 2] v) { f = Identity(e) v = Sin(u) }>"
)
NOTHING = "(int64 i, bool c, float[2, 2] s) => (bool c, float[2, 2] s) {"
LONG = (
    '<ir_version: 9, opset_import: ["" : 17]> m (float[1000000000, 2] x) => (float[2] y) {{ {} }}'
)
SCAN = (
    "i = Constant <value = float[2] {1, 2}> () y, z = Scan <num_scan_inputs = 1, body = b "
    "(float[2] s, float[2] e) => (float[2] t, float[2] u) { t = Add(s, e) u = Sin(t) }> (i, x)"
)
UNROLLED = {
    "Loop": loop(10**9, "t = Sin(s)"),
    "Loop that computes nothing": loop(10**18, "").replace(
        f"(int64 i, bool c, float[2, 2] s) {PASSED}", NOTHING
    ),
    "Loop in a Loop": loop(1000, INNER),
    "Scan": LONG.format(SCAN),
    "SplitToSequence": LONG.format(
        "s = SplitToSequence <axis = 0, keepdims = 0> (x) p = Constant <value = int64 {3}> () "
        "y = SequenceAt(s, p)"
    ),
    "SplitToSequence by a size": LONG.format(
        "k = Constant <value = int64 {1}> () s = SplitToSequence <axis = 0> (x, k) "
        "p = Constant <value = int64 {3}> () y = SequenceAt(s, p)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNROLLED)
def test_what_unrolling_makes_is_counted_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is appended: a known number of trips is refused at once."""
    graph = onnx_io.load(parser.parse_model(UNROLLED[name]))
    body = name.split()[0]
    monkeypatch.setattr(unrolling.Unrolling, "append_body", None)
    with pytest.raises(LimitError, match=rf"^{body} .*: unrolled the graph has at least \d+"):
        control.unroll(graph)


def test_a_loop_whose_end_is_computed_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trip asks only about its own nodes: the time is by the trips, not their square."""
    text = loop(10**9, "o = Sin(s) t = Sin(o)").replace("k = Identity(c)", "k = Less(i, h)")
    text = text.replace("y = Loop", "h = Constant <value = int64 {60}> () y = Loop")
    graph = onnx_io.load(parser.parse_model(text))
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "150")
    with pytest.raises(
        LimitError, match=r"^Sin 'y.*' .*: unrolled .* 151 nodes; .* EDGEGRAD_MAX_N"
    ):
        control.unroll(graph.copy())
    seen: list[int] = []

    def counted(part: Graph) -> Inferred:
        seen.append(len(part.nodes))
        return infer(part)

    monkeypatch.setattr(unrolling, "infer", counted)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "190")
    assert len(control.unroll(graph).nodes) == 186
    assert max(seen) < 4


def test_sequences_that_loops_make_share_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""{HEAD} {{ n = Constant <value = int64 {{300}}> () e = SequenceEmpty ()
        s = Loop(n, , e) <body = b (int64 i, bool c, seq(float[2, 2]) s)
            => (bool k, seq(float[2, 2]) t) {{ k = Identity(c) t = SequenceInsert(s, x) }}>
        p = Constant <value = int64 {{299}}> () y = SequenceAt(s, p) }}"""
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "400")
    assert len(control.unroll(onnx_io.load(parser.parse_model(text))).nodes) == 303
    text = text.replace("k = Identity", "z = Constant <value = int64 {0}> () k = Identity")
    text = text.replace("(s, x)", "(s, x, z)")
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "650")
    with pytest.raises(LimitError, match=r"^SequenceInsert "):
        control.unroll(onnx_io.load(parser.parse_model(text)))


def test_names_made_of_long_names_are_short() -> None:
    """The name of a Loop is in the names of all nodes that it becomes."""
    model = parser.parse_model(loop(50, "t = Sin(s)"))
    model.graph.node[1].name = "n" * 100_000
    nodes = control.unroll(onnx_io.load(model)).nodes
    assert max(len(n.name) for n in nodes) < 350
    assert len({n.name for n in nodes}) == len(nodes)


# --- models read

OPSET = '<ir_version: 9, opset_import: ["" : 17, "own" : 1]>'


def functions(levels: int, calls: int, first: str = "b = Sin(a)") -> bytes:
    """A model whose functions call the one below so many times, `levels` deep."""
    text = f"{OPSET} m (float[2, 2] x) => (float[2, 2] y) {{ y = own.f{levels - 1}(x) }}"
    for k in range(levels):
        steps = [f"t{i + 1} = own.f{k - 1}(t{i})" for i in range(calls)]
        body = " ".join(steps).replace("t0", "a").replace(f"t{calls} =", "b =") if k else first
        text += f'<opset_import: ["" : 17, "own" : 1], domain: "own"> f{k} (a) => (b) {{ {body} }}'
    data: bytes = parser.parse_model(text).SerializeToString()
    return data


def test_functions_are_counted_before_they_are_inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    data = functions(19, 2)
    assert len(data) < 2000
    monkeypatch.setattr(convert, "inline_functions", None)
    with pytest.raises(LimitError, match=r"^model bytes: with its functions inlined .* 262144 nod"):
        onnx_io.load(data)
    with pytest.raises(LimitError, match=r"^model bytes: with .* 10\*\*18 or more nodes"):
        onnx_io.load(functions(63, 2))
    with pytest.raises(LimitError, match=r"^model bytes: functions are nested to 500 levels"):
        onnx_io.load(functions(500, 1))
    numbers = ", ".join(["1"] * 9999)
    constant = f"c = Constant <value = float[9999] {{{numbers}}}> () b = Add(a, c)"
    large = functions(14, 2, constant)
    with pytest.raises(
        LimitError, match=r"^model bytes: with its functions inlined .* grows by 328\d+ bytes; "
    ):
        onnx_io.load(large)
    with pytest.raises(ModelError, match=r"functions call each other in a circle: f2, f1, f0"):
        onnx_io.load(functions(3, 1, "b = own.f2(a)"))


def test_functions_of_as_many_nodes_as_the_switch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    data = functions(6, 2)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "31")
    with pytest.raises(LimitError, match=r"32 nodes"):
        onnx_io.load(data)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "32")
    assert len(onnx_io.load(data).nodes) == 32


def nested(levels: int) -> onnx.ModelProto:
    """A model of an If in an If, so many levels deep."""
    model = parser.parse_model(f"{OPSET} m (bool c, float[2] x) => (float[2] y) {{}}")
    graph, name = model.graph, "y"
    for level in range(levels):
        node = graph.node.add(op_type="If", input=["c"], output=[name])
        name = f"o{level}"
        for branch in ("else_branch", "then_branch"):
            inner = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g
            inner.name = f"{branch}{level}"
            inner.output.add(name=name)
            inner.node.add(op_type="Sin", input=["x"], output=[name])
        del inner.node[:]
        graph = inner
    graph.node.add(op_type="Sin", input=["x"], output=[name])
    return model


def test_subgraphs_inside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of files end at 33 of them; graphs of a program need not."""
    with pytest.raises(LimitError, match=r"^model: subgraphs are nested to 90 levels"):
        onnx_io.load(nested(90))
    monkeypatch.setenv("EDGEGRAD_MAX_DEPTH", "9000")
    assert len(control.unroll(onnx_io.load(nested(90))).nodes) > 270
    with pytest.raises(ModelError, match=r"model: .* deeper than Python can follow"):
        onnx_io.load(nested(1500))


def test_files_are_as_large_as_the_switch_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tmp_path / "model.onnx", functions(2, 1)
    path.write_bytes(data)
    monkeypatch.setenv("EDGEGRAD_MAX_FILE_BYTES", str(len(data) - 1))
    for model in (path, data):
        with pytest.raises(LimitError, match=rf": {len(data)} bytes; .* EDGEGRAD_MAX_FILE_BYTES"):
            onnx_io.load(model)
    monkeypatch.setenv("EDGEGRAD_MAX_FILE_BYTES", str(len(data)))
    assert len(onnx_io.load(path).nodes) == len(onnx_io.load(data).nodes) == 1


@pytest.mark.parametrize("size", [3 << 30, 1 << 40])
def test_a_large_file_is_not_read(size: int, tmp_path: Path) -> None:
    """Its size is asked for; the file has a hole and takes no room."""
    path = tmp_path / "model.onnx"
    with open(path, "wb") as file:
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (onnx_io.load, safetensors.read, onnx_adapter.read):
        with pytest.raises(LimitError, match=rf"cannot read .*: {size} bytes; .* is 2147483647"):
            read(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


# --- planning

X = "m (float[2, 2] x) => (float[a, b] y) "
WIDE = "m (float[1000000, 1] x, float[1, 1000000] w) => (float[n, k] y) "
PLANNED = {
    "CONSTANT_BYTES of a transform": (
        "m (float[1, 100000, 1] x) => (float[a, b, c] y) { y = DFT <axis = 1> (x) }"
    ),
    "CONSTANT_BYTES of frames": (
        "m (float[1, 100000, 1] x) => (float[a, b, c, d] y) "
        "{ s = Constant <value = int64 {1}> () y = STFT(x, s) }"
    ),
    "CONSTANT_BYTES of a diagonal": (
        'm (float[20000, 20000] x) => (float[a] y) { y = Einsum <equation = "ii->i"> (x) }'
    ),
    "CONSTANT_BYTES of weights": (
        "m (float[1, 1, 1, 2] x) => (float[a, b, c, d] y) "
        "{ z = Constant <value = int64[4] {1, 1, 1, 9000000}> () "
        'y = Resize <mode = "cubic"> (x, , , z) }'
    ),
    "CONSTANT_BYTES of an index": (
        X + "{ p = Constant <value = int64[4] {0, 0, 0, 99999999}> () "
        'y = Pad <mode = "edge"> (x, p) }'
    ),
    "PLAN_BYTES of a product": WIDE + "{ m = MatMul(x, w) r = Sin(m) y = MatMul(r, x) }",
    "PLAN_BYTES of a crop": (
        X + "{ s = Constant <value = int64[2] {99999999, 99999999}> () y = CenterCropPad(x, s) }"
    ),
    "NODES of strides": (
        "m (float[1, 1, 80, 80] x, float[1, 1, 3, 3] w) => (float[a, b, c, d] y) "
        "{ y = ConvTranspose <strides = [9999, 9999]> (x, w) }"
    ),
}


def planned(text: str, opset: int = 18) -> Plan:
    """The plan of a model in the text form of ONNX."""
    head = f'<ir_version: 9, opset_import: ["" : {opset}]> '
    graph = onnx_io.load(parser.parse_model(text if text.startswith("<") else head + text))
    return make_plan(graph, {}, target=resolve("x86-64-v3").target, threads=1)


@pytest.mark.parametrize("case", PLANNED)
def test_what_a_plan_would_take_is_refused_before(case: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitError, match=rf"{limits.PREFIX}{case.split()[0]} "):
        planned(PLANNED[case])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_a_plan_names_its_largest_values(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "m (float[64, 64] x) => (float[64, 64] y) { m = MatMul(x, x) y = MatMul(m, m) }"
    monkeypatch.setenv("EDGEGRAD_MAX_PLAN_BYTES", "40 kB")
    with pytest.raises(LimitError, match=r"^plan m: with 'x' f32\[64,64\], .* it takes \d+ bytes"):
        planned(text)
    monkeypatch.setenv("EDGEGRAD_MAX_PLAN_BYTES", "200 kB")
    assert planned(text).nbytes < 200_000


def test_folded_constants_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is small; a Loop that holds one has it once for all trips."""
    steps = " ".join(f"v{k} = Cos(v{k - 1})" for k in range(1, 300))
    text = f"{OPSET} m (float[2] x) => (float[a] y) <float[999] v0 = {{{', '.join(['1'] * 999)}}}> "
    text += f"{{ {steps} r = ReduceSum <keepdims = 0> (v299) y = Add(x, r) }}"
    graph = onnx_io.load(parser.parse_model(text))
    monkeypatch.setenv("EDGEGRAD_MAX_CONSTANT_BYTES", "1 MB")
    with pytest.raises(LimitError, match=r"^Cos .*: with constants folded before, \d+ bytes; "):
        infer(graph.copy())
    monkeypatch.setenv("EDGEGRAD_MAX_CONSTANT_BYTES", "2 MB")
    infer(graph)
    assert [n.op for n in graph.nodes] == ["Add"]
    constant = f"w = Constant <value = float[4, 4] {{{', '.join(['2'] * 16)}}}> () "
    looped = loop(40, constant + "v = MatMul(w, s) t = Sin(v)").replace("2, 2]", "4, 4]")
    monkeypatch.setenv("EDGEGRAD_MAX_CONSTANT_BYTES", "128")
    assert sum(len(data) for _, data in planned(looped).constants) < 200
