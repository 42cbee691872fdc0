"""Limits: what asks for too much is refused before the work is done, and a switch allows more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import parser

from engine import limits
from engine.errors import LETTERS, EngineError, LimitError, ModelError, nearest
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes import control
from engine.graphs.passes.infer import infer

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_limits_is_their_table() -> None:
    page = (DOCS / "limits.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z_]+) \| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, limits.PREFIX + name, row.told(), row.meaning) for name, row in limits.LIMITS.items()
    ]
    assert re.findall(r"^- \*\*([A-Z_]+)\*\*: ", page, re.MULTILINE) == [*limits.LIMITS]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NODES", "", 200_000),
        ("NODES", "300", 300),
        ("PLAN_BYTES", "1.5 GB", 1_500_000_000),
        ("PLAN_BYTES", "4096", 4096),
        ("NODES", "1_0", "EDGEGRAD_MAX_NODES='1_0': expected a whole number of nodes"),
        ("NODES", "0", "EDGEGRAD_MAX_NODES='0': expected 1 to"),
        ("NODES", "9" * 5000, "EDGEGRAD_MAX_NODES='999"),
        ("PLAN_BYTES", "4 XB", "EDGEGRAD_MAX_PLAN_BYTES='4 XB': expected bytes, as '48 MB'"),
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
        LimitError, match=r"^Loop 'l': 300000 nodes; .* 200000\. .* EDGEGRAD_MAX_NODES"
    ) as e:
        limits.check("NODES", 300_000, "Loop 'l'")
    assert (e.value.limit, e.value.value, e.value.most) == ("NODES", 300_000, 200_000)
    assert isinstance(e.value, MemoryError)
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "300000")
    limits.check("NODES", 300_000, "Loop 'l'")
    with pytest.raises(LimitError, match="10\\*\\*18 or more nodes"):
        limits.check("NODES", 10**10_000, "Loop 'l'")


def test_messages_stay_short() -> None:
    """A name of ten million letters is cut, and compared with no other."""
    name = "n" * 10_000_000
    text = str(ModelError(f"{name!r}: two nodes make it; expected one{nearest(name, [name, 'n'])}"))
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
    monkeypatch.setattr(control._Unroll, "body", None)
    with pytest.raises(LimitError, match=rf"^{body} .*: unrolled the graph has at least \d+"):
        control.unroll(graph)


def test_a_loop_whose_end_is_computed_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trip asks only about its own nodes: the time is by the trips, not their square."""
    text = loop(10**9, "o = Sin(s) t = Sin(o)").replace("k = Identity(c)", "k = Less(i, h)")
    text = text.replace("y = Loop", "h = Constant <value = int64 {60}> () y = Loop")
    graph = onnx_io.load(parser.parse_model(text))
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "150")
    with pytest.raises(LimitError, match=r"^Sin 'y' .*: unrolled .* 151 nodes; .* EDGEGRAD_MAX_N"):
        control.unroll(graph.copy())
    seen: list[int] = []

    def counted(part: Graph) -> Inferred:
        seen.append(len(part.nodes))
        return infer(part)

    monkeypatch.setattr(control, "infer", counted)
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
