"""Words with names: layouts, packing, and how numpy, C and compiled kernels see them."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries import fingerprint
from engine.kernels.binaries.load import compile_kernel, get_linker
from engine.kernels.loops import gemm
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.kernel import Body, Template, kernel, off
from engine.kernels.vocabulary.op import TensorType
from engine.plan import words
from engine.plan.context import RANDOM, STATUS
from engine.plan.plan import KernelSpec
from engine.plan.words import OPEN, Field, Words

JOB = Words("job", rows="rows of a job", at=Field("where it begins", names=("h", "w")))
TABLE = Words("table", total="sum of all rows", seen="jobs that were looked at")
ALL = Words(
    "all",
    n="number of jobs",
    scale=Field("factors of odd and even jobs", count=2),
    jobs=Field("the jobs", count=OPEN, of=JOB),
)
SHARED = Words(
    "shared",
    threads="number of threads",
    table=Field("where the sums are", address=True, of=TABLE),
    turn=Field("whose turn it is", line=True),
    after="after the turn",
)


def test_fields_follow_each_other() -> None:
    assert [(name, m.offset) for name, m in JOB.members.items()] == [
        ("rows", 0), ("at_h", 1), ("at_w", 2),
    ]  # fmt: skip
    assert (JOB.size, JOB.open) == (3, False)
    assert (ALL.size, ALL.open) == (3, True)  # the jobs are not counted


def test_a_line_begins_a_cache_line_and_ends_it() -> None:
    assert {name: m.offset for name, m in SHARED.members.items()} == {
        "threads": 0, "table": 1, "turn": 8, "after": 9,
    }  # fmt: skip
    assert SHARED.size == 16


def test_values_are_packed_in_the_order_of_the_fields() -> None:
    jobs = [JOB.pack(at=(3, 4), rows=2), JOB.pack(rows=5, at=(6, 7))]
    packed = ALL.pack(jobs=jobs, n=2, scale=[8, np.int64(9)])
    assert packed.words is ALL
    assert packed.values == (2, 8, 9, 2, 3, 4, 5, 6, 7)


def test_addresses_are_not_packed() -> None:
    row = Words("map", operands=Field("inputs", count=2, address=True), rows="rows")
    assert row.addresses == 2
    assert row.pack(rows=7).values == (7,)
    with pytest.raises(TypeError, match="live in memory"):
        SHARED.pack(threads=1, turn=0, after=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 1}, r"missing \['at'\], unknown \[\]"),
        ({"rows": 1, "at": (1, 2), "to": 3}, r"missing \[\], unknown \['to'\]"),
        ({"row": 1, "at": (1, 2)}, r"missing \['rows'\], unknown \['row'\]"),
        ({"rows": 1.5, "at": (1, 2)}, "rows is 1.5, not an integer"),
        ({"rows": JOB.pack(rows=1, at=(2, 3)), "at": (1, 2)}, "not an integer"),
    ],
)
def test_what_is_no_value_of_a_field_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        JOB.pack(**values)


def test_a_sequence_has_the_length_of_its_field() -> None:
    with pytest.raises(ValueError, match="3 words for at, which has 2"):
        JOB.pack(rows=1, at=(1, 2, 3))
    with pytest.raises(ValueError, match="1 words for scale"):
        ALL.pack(n=0, scale=[1], jobs=[])
    with pytest.raises(TypeError, match="not words job"):
        ALL.pack(n=0, scale=[1, 2], jobs=[TABLE.pack(total=1, seen=2)])


def test_names_are_told_apart() -> None:
    with pytest.raises(TypeError, match="two fields are read as 'at_h'"):
        Words("job", at=Field("where", names=("h", "w")), at_h="again")
    with pytest.raises(TypeError, match="'n' follows an array without an end"):
        Words("rest", all=Field("all", count=OPEN), n="their number")


def test_words_are_equal_by_their_layout() -> None:
    same = Words("job", rows="rows of a job", at=Field("where it begins", names=("h", "w")))
    other = Words("job", at=Field("where it begins", names=("h", "w")), rows="rows of a job")
    assert (same, hash(same)) == (JOB, hash(JOB))
    assert other != JOB


def test_values_are_unpacked_as_they_were_packed() -> None:
    values = {"n": 2, "scale": (8, 9), "rest": (1, 2, 3)}
    row = Words(
        "row",
        operands=Field("pointers", count=3, address=True),
        n="number",
        scale=Field("factors", names=("a", "b")),
        rest=Field("all others", count=OPEN),
    )
    assert row.unpack(row.pack(**values).values) == values


def test_memory_is_seen_by_numpy() -> None:
    memory = np.zeros(SHARED.size, np.int64)
    seen = memory.view(SHARED.dtype)[0]
    seen["threads"], seen["turn"], seen["after"] = 2, 3, 4
    assert {i: int(v) for i, v in enumerate(memory) if v} == {0: 2, 8: 3, 9: 4}
    assert ALL.dtype["scale"].shape == (2,)
    assert SHARED.dtype.itemsize == 8 * SHARED.size


def test_c_has_an_index_for_every_name() -> None:
    lines = JOB.write_defines().splitlines()
    assert [line.split()[1:3] for line in lines] == [
        ["JOB_ROWS", "0"], ["JOB_AT_H", "1"], ["JOB_AT_W", "2"], ["JOB_WORDS", "3"],
    ]  # fmt: skip
    assert lines[0].endswith("/* rows of a job */")


def test_the_text_has_every_meaning() -> None:
    assert str(JOB).splitlines() == ["rows  rows of a job", "at    where it begins (h, w)"]
    assert str(ALL).splitlines()[-1] == "jobs   the jobs [...] of job"
    assert "(address) of table" in str(SHARED)


# --- in kernels


@kernel("y: update i64[...]  g: i64[]", words={"g": ALL, "y": TABLE}, T=("i64",))
def weighted(target: Target, T: str) -> Body:
    """Sums the rows of all jobs, weighted in turns; for these tests."""

    def body(y, g, tid, nthreads):
        y.total = 0
        for i in range(g.n):
            job = off(g.jobs, i)
            y.total += job.rows * g.scale[i & 1] + 10 * job.at_h + 100 * job.at[tid + 1]
            y.seen = i + 1

    return body


@kernel("y: update i64[...]  g: i64[]", words={"g": SHARED}, T=("i64",))
def follow(target: Target, T: str) -> Body:
    """Writes through an address, and to a word by its place; for these tests."""

    def body(y, g, tid, nthreads):
        g.table.total = g.threads + g.after
        g.turn[tid] = 5
        y[tid] = g.table.seen

    return body


def misread(name: str) -> Template:
    """A template that reads a field that is not there."""

    @kernel("y: update i64[...]  g: i64[]", words={"g": JOB}, T=("i64",))
    def wrong(target: Target, T: str) -> Body:
        def read(y, g, tid, nthreads):
            y[tid] = g.rows + g.columns

        def write(y, g, tid, nthreads):
            g.at = y[tid]

        return {"read": read, "write": write}[name]

    return wrong


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Compile a template as the engine does, and call it as thread 0 of 1 on argument words."""

    def run(template: Template, arguments: np.ndarray) -> None:
        monkeypatch.setitem(list_templates(), template.name, template)
        spec = KernelSpec(*template("i64"))
        address = get_linker(detect_host()).get_addresses([spec])[spec.symbol]
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        entry(address)(arguments.ctypes.data, 0, 1)

    return run


def test_a_kernel_reads_and_writes_names(call: Callable[..., None]) -> None:
    y = np.zeros(TABLE.size, np.int64)
    jobs = [JOB.pack(rows=2, at=(1, 0)), JOB.pack(rows=3, at=(0, 1))]
    packed = ALL.pack(n=2, scale=(7, 9), jobs=jobs)
    call(weighted, np.array([y.ctypes.data, *packed.values], np.int64))
    assert y.tolist() == [2 * 7 + 10 + 3 * 9 + 100, 2]


def test_a_kernel_follows_addresses(call: Callable[..., None]) -> None:
    y, table = np.zeros(1, np.int64), np.array([0, 6], np.int64)
    arguments = np.zeros(1 + SHARED.size, np.int64)
    shared = arguments[1:].view(SHARED.dtype)[0]
    shared["threads"], shared["table"], shared["after"] = 3, table.ctypes.data, 4
    arguments[0] = y.ctypes.data
    call(follow, arguments)
    assert (table.tolist(), y.tolist(), int(shared["turn"])) == ([7, 6], [6], 5)


@pytest.mark.parametrize("name", ["read", "write"])
def test_a_wrong_name_does_not_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = misread(name)
    monkeypatch.setitem(list_templates(), template.name, template)
    with pytest.raises(EngineError, match="cannot be compiled"):
        compile_kernel(KernelSpec(*template("i64")), detect_host())


def test_a_lowering_packs_the_words_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(
        "one", {n: TensorType("f32", (4, 4)) for n in "ab"}, ["y"], {},
        [Node("MatMul", ("a", "b"), ("y",), name="product")], {"": 17},
    )  # fmt: skip
    make_plan(graph.copy(), {}, target=detect_host(), threads=1)
    wider = Words("gemm", **gemm.GEMM_WORDS.fields, more="one more")
    other = dataclasses.replace(gemm.gemm, words={"g": wider})
    monkeypatch.setitem(list_templates(), "gemm", other)
    with pytest.raises(EngineError, match="kernel gemm_f32_0_0 reads"):
        make_plan(graph, {}, target=detect_host(), threads=1)


def test_layouts_decide_what_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def digest() -> bytes:
        fingerprint._digest.cache_clear()
        return fingerprint._digest("engine.kernels.loops.gemm")

    before = digest()
    edited = tmp_path / "words.py"
    edited.write_text(Path(words.__file__).read_text("utf-8") + "# edited", "utf-8")
    monkeypatch.setitem(fingerprint.list_sources(), "engine.plan.words", edited)
    assert digest() != before
    monkeypatch.undo()
    assert digest() == before


# --- how the house uses them


def test_every_kernel_names_its_words() -> None:
    """A parameter of further words has a layout, and so has every pointer to a shared one."""
    shared = {"fault": STATUS, "noise": RANDOM}
    for template in list_templates().values():
        for name, kind in template.signature:
            if kind == "i64[]":
                assert name in template.words, f"{template.name}: words for {name}"
            elif name in shared:
                assert template.words.get(name) == shared[name], f"{template.name}: {name}"


WORDS = {"g", "q", "fault", "noise", "program", "job", "walk", "words"}  # names of words
TENSOR = {"shape", "dims"}  # what only tensors have


def counted(tree: ast.Module) -> list[str]:
    """Where a module reads or writes words by their place: `g[3]`, `off(g, 4)`, `words[1]`."""

    def is_words(node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr not in TENSOR and is_words(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "off":
            return is_words(node.args[0])
        return isinstance(node, ast.Name) and node.id in WORDS

    def is_count(node: ast.expr) -> bool:
        parts = _summands(node)
        return any(isinstance(n, ast.Constant) and isinstance(n.value, int) for n in parts)

    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Subscript) and is_words(node.value) and is_count(node.slice))
        or (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "off"
            and isinstance(node.args[0], ast.Name)
            and is_words(node.args[0])
            and is_count(node.args[1])
        )
    ]


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("m = g[3]", 1),
        ("g[12] = 0", 1),
        ("x = g[base + 1]", 1),
        ("q = off(g, 4 + i * 39)", 1),
        ("last = words[4] - words[3]", 2),
        ("fault[1], fault[2] = i, at", 2),
        ("d = g.size[0]", 1),
        ("t = off(g.jobs, i).taps[2]", 1),
        ("d = g.walk[rank + d]", 0),
        ("job = off(g.jobs, i)", 0),
        ("m = g.m + shape[0]", 0),
    ],
)
def test_a_word_read_by_its_place_is_found(text: str, count: int) -> None:
    assert len(counted(ast.parse(text))) == count


def test_no_word_is_read_by_its_place() -> None:
    root = fingerprint.ROOT
    paths = [
        p for room in ("ops", "loops", "compiler") for p in sorted((root / room).rglob("*.py"))
    ]
    paths += sorted((root.parent / "graphs" / "planner").glob("*.py"))
    counts = {p.name: counted(ast.parse(p.read_text("utf-8"))) for p in paths}
    assert {"gemm.py", "executor.py", "interpret_formulas.py"} <= counts.keys()
    assert {name: places for name, places in counts.items() if places} == {}


def test_c_reads_no_word_by_its_place() -> None:
    runtime = fingerprint.ROOT.parent / "tools" / "trimmed" / "runtime"
    sources = {p.name: p.read_text("utf-8") for p in sorted(runtime.glob("*.[ch]"))}
    assert "threads.c" in sources
    read = re.compile(r"\b(?:words|table|status|noise|fault)\[[^\]A-Z]*\d[^\]A-Z]*\]")
    assert {name: read.findall(text) for name, text in sources.items() if read.search(text)} == {}
