"""The language of kernels: what they call, and how often that is compiled."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba.core import bytecode, interpreter, ir, postproc, ssa
from numba.core.typing import BaseContext

from engine.errors import InternalError
from engine.kernels.binaries.load import compile_kernel, get_linker
from engine.kernels.compiler import emit, frontend, lower
from engine.kernels.compiler.ssa import assign_once
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.kernel import (
    Body,
    Template,
    imax,
    inline,
    kernel,
    off,
    outline,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.plan import KernelSpec

X = np.array([2.5, -2.5, np.nan, 0.0, -0.0, 7.0])
Y = np.array([-1.0, np.nan, 3.0, -0.0, 0.0, 7.0])


@kernel(
    "x, y, low, high: update T[...]  cut: update i64[...]  n: i64",
    T=("f64",),
)
def python_builtins(target: Target, T: str) -> Body:
    """The names that are Python's own; for these tests."""

    def body(x, y, low, high, cut, n, tid, nthreads):
        for i in range(n):
            low[i], high[i] = min(x[i], y[i], 4.0), max(x[i], y[i], -4.0)
            cut[i] = int(abs(y[i])) if y[i] == y[i] else -1

    return body


@inline
def twice(x):
    return x + x


def scaling(name: str, factor: int) -> Template:
    """A template whose body calls an inline function that closes over `factor`."""

    @kernel("y: update i64[...]  n: i64", T=("i64",))
    def scale(target: Target, T: str) -> Body:
        @inline
        def scaled(x):
            return twice(x) * factor

        def body(y, n, tid, nthreads):
            for i in range(n):
                y[i] = scaled(y[i])

        return body

    return Template(name, scale.parameters, scale.build, scale.ranges)


@kernel("y: update i64[...]  n: i64", T=("i64",))
def power(target: Target, T: str) -> Body:
    """y^4 by two calls of an outlined function; for these tests."""

    @outline
    def square(y, n):
        for i in range(n):
            y[i] = y[i] * y[i]

    def body(y, n, tid, nthreads):
        square(y, n)
        square(y, n)

    return body


@inline
def difference(x, y):
    return x - y


@kernel("y: update i64[...]  n: i64", T=("i64",))
def named(target: Target, T: str) -> Body:
    """Calls by name, of an inline function, a native and a row program; for these tests."""
    add = loop(T, "a[] b -> a[] = a + b; sum(a)")

    def body(y, n, tid, nthreads):
        y[0] = difference(y=n, x=10)
        y[1] = difference(n, y=1)
        y[2] = imax(b=n, a=1)
        # a is read and written, c is not an operand of the program.
        y[3] = add(length=2, c=y, b=n, a=off(y, 4))

    return body


def calling(name: str, function: str) -> Template:
    """A template that passes y and n to a function by wrong names."""

    def call(which):
        @inline
        def missing(y, n):
            return difference(x=n)

        @inline
        def unknown(y, n):
            return difference(x=n, y=n, z=n)

        @inline
        def twice_given(y, n):
            return difference(n, n, x=n)

        @inline
        def lacks_an_operand(y, n):
            return loop_a_b(b=n, length=1)

        return {f.__name__: f for f in (missing, unknown, twice_given, lacks_an_operand)}[which]

    @kernel("y: update i64[...]  n: i64", T=("i64",))
    def calls(target: Target, T: str) -> Body:
        wrong = call(function)

        def body(y, n, tid, nthreads):
            y[0] = wrong(y, n)

        return body

    return Template(name, calls.parameters, calls.build, calls.ranges)


loop_a_b = loop("i64", "a[] b -> sum(a + b)")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Compile a template, whatever the cache holds, and call it as thread 0 of 1."""

    def run(template: Template, kind: str, *arguments: np.ndarray | int) -> None:
        monkeypatch.setitem(list_templates(), template.name, template)
        spec = KernelSpec(*template(kind))
        code = compile_kernel(spec, detect_host())
        address = get_linker(detect_host()).add(spec.symbol, emit.emit_object(code, detect_host()))
        words = np.array([a if isinstance(a, int) else a.ctypes.data for a in arguments])
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        entry(address)(words.ctypes.data, 0, 1)

    return run


def test_builtins_mean_what_python_means(call: Callable[..., None]) -> None:
    low, high, cut = np.empty_like(X), np.empty_like(X), np.empty(len(X), np.int64)
    call(python_builtins, "f64", X, Y, low, high, cut, len(X))
    pairs = list(zip(X.tolist(), Y.tolist(), strict=True))
    for actual, expected in [
        (low, [min(x, y, 4.0) for x, y in pairs]),
        (high, [max(x, y, -4.0) for x, y in pairs]),
    ]:
        np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
    assert cut.tolist() == [-1 if y != y else int(abs(y)) for _, y in pairs]


def test_an_inline_function_is_compiled_once_for_all_kernels(
    call: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    real = frontend.compile_function

    def counting(fn, args, name, returns, *, inline):
        compiled.append(name)
        return real(fn, args, name, returns, inline=inline)

    monkeypatch.setattr(frontend, "compile_function", counting)
    for name, factor in (("scale_a", 3), ("scale_b", 3), ("scale_c", 5)):
        y = np.arange(4)
        call(scaling(name, factor), "i64", y, len(y))
        assert y.tolist() == [2 * factor * i for i in range(4)]
    inlined = [name for name in compiled if not name.startswith("scale_")]
    assert sorted(inlined) == ["scaled", "scaled", "twice"]  # of two values of `factor`


def test_llvm_reads_each_function_of_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's libraries would parse it, check it and copy it into every function that calls it."""
    optimized(scaling("scale_e", 11))  # from here on the types are known
    read, lifetimes = [], []
    parse, run = llvm.parse_assembly, postproc.PostProcessor.run

    def counting_parse(text, *rest):
        read.append(text)
        return parse(text, *rest)

    def counting_run(self, *options, **named_options):
        lifetimes.append(self)
        return run(self, *options, **named_options)

    monkeypatch.setattr(llvm, "parse_assembly", counting_parse)
    monkeypatch.setattr(postproc.PostProcessor, "run", counting_run)
    optimized(scaling("scale_f", 12))
    assert len(read) == 5  # the body, `scaled`, `twice`, the entry point; all, once optimised
    assert lifetimes == []  # without references to count, nobody asks where variables end


def test_equal_calls_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized(scaling("scale_g", 13))
    asked = []
    real = BaseContext.resolve_function_type

    def counting(self, func, args, kws):
        asked.append((func, args))
        return real(self, func, args, kws)

    monkeypatch.setattr(BaseContext, "resolve_function_type", counting)
    optimized(scaling("scale_h", 13))
    new = [func for func, _ in asked if not isinstance(func, frontend.CalleeType)]
    assert new == []  # operators and `range` are known from the first kernel


def test_arguments_are_passed_by_name(call: Callable[..., None]) -> None:
    y = np.arange(7)
    call(named, "i64", y, 4)
    assert y.tolist() == [6, 3, 4, 4 + 5, 4 + 4, 5 + 4, 6]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("missing", r"missing: \['y'\], not taken by name: \[\]"),
        ("unknown", r"missing: \[\], not taken by name: \['z'\]"),
        ("twice_given", r"missing: \[\], not taken by name: \['x'\]"),
        ("lacks_an_operand", r"missing: \['a'\], not taken by name: \[\]"),
    ],
)
def test_a_call_by_wrong_names_is_refused(
    call: Callable[..., None], function: str, expected: str
) -> None:
    with pytest.raises(InternalError, match="cannot be compiled") as refused:
        call(calling("calls", function), "i64", np.arange(4), 4)
    assert re.search(expected, str(refused.value.__cause__))


@kernel("y: update i64[n]  n, step: i64", T=("i64",))
def add_step(target: Target, T: str) -> Body:
    """y = y + step, by a body that takes all of its signature by name."""

    @inline
    def more(call, i):
        return call.y[i] + call.step

    def body(call, tid, nthreads):
        for i in range(call.n):
            call.y[i] = more(call, i)

    return body


@kernel("y: update i64[n]  n, step: i64", T=("i64",))
def add_misspelt(target: Target, T: str) -> Body:
    """A body that reads a name that its signature does not have."""

    def body(call, tid, nthreads):
        call.y[0] = call.steps

    return body


def test_a_body_takes_its_signature_by_name(call: Callable[..., None]) -> None:
    y = np.arange(3)
    call(add_step, "i64", y, 3, 10)
    assert y.tolist() == [10, 11, 12]


def test_a_name_that_the_signature_does_not_have_is_refused(call: Callable[..., None]) -> None:
    with pytest.raises(InternalError, match="cannot be compiled") as refused:
        call(add_misspelt, "i64", np.arange(3), 3, 10)
    assert "the kernel has no 'steps', it has y, n, step" in str(refused.value.__cause__)


def test_no_operand_of_a_row_program_is_named_as_its_length_is() -> None:
    with pytest.raises(ValueError, match="an operand named length"):
        loop("f32", "length[] -> sum(length)")


def test_an_outlined_function_is_called_and_its_code_is_there_once(
    call: Callable[..., None],
) -> None:
    y = np.arange(4)
    call(power, "i64", y, len(y))
    assert y.tolist() == [0, 1, 16, 81]
    module = llvm.parse_bitcode(optimized(power), llvm.create_context())
    (code,) = (f for f in module.functions if b"noinline" in b"".join(f.attributes))
    calls = [i for f in module.functions for b in f.blocks for i in b.instructions]
    assert sum(i.opcode == "call" and f"@{code.name}(" in str(i) for i in calls) == 2


def walk_tangled(n: int, step: int) -> int:
    """Assign variables in branches and nested loops, on some paths only."""
    total, last = 0, n
    for i in range(n):
        if i > step:
            last, total = total, last
        else:
            total = total + i
            while last > total:
                last = last - step
                if last == 3:
                    break
                total += 1
        if total > 100:
            late = total
            total = late - last
    return total * 7 + last


def read(function: Callable[..., int]) -> Any:
    """Return numba's IR of a function, with variables as they are written."""
    identity = bytecode.FunctionIdentity.from_function(function)
    return interpreter.Interpreter(identity).interpret(bytecode.ByteCode(identity))


@kernel("y: update i64[...]  n: i64", T=("i64",))
def tangled(target: Target, T: str) -> Body:
    """`walk_tangled` for steps 0 to n; for these tests."""
    walk = inline(walk_tangled)

    def body(y, n, tid, nthreads):
        for i in range(n):
            y[i] = walk(y[i], i + 1)

    return body


def test_variables_are_assigned_once_and_joined_where_paths_meet() -> None:
    """numba's own pass, which goes through the function for each variable, joins the same."""
    ours, theirs = read(walk_tangled), ssa.reconstruct_ssa(read(walk_tangled))
    assign_once(ours.blocks)
    joins, names = [], []
    for graph in (ours, theirs):
        made = [s for block in graph.blocks.values() for s in block.find_insts(ir.Assign)]
        names.append(sorted(s.target.name for s in made))
        joins.append(
            {
                label: sorted(
                    (
                        s.target.unversioned_name,
                        sorted(
                            zip(
                                s.value.incoming_blocks,
                                [v.unversioned_name for v in s.value.incoming_values],
                                strict=True,
                            )
                        ),
                    )
                    for s in block.find_insts(ir.Assign)
                    if isinstance(s.value, ir.Expr) and s.value.op == "phi"
                )
                for label, block in graph.blocks.items()
            }
        )
    assert len(set(names[0])) == len(names[0])
    assert names[0] == names[1]
    assert joins[0] == joins[1]
    assert sum(map(len, joins[0].values())) > 6


def test_only_variables_that_are_joined_have_places_in_memory() -> None:
    """LLVM would find out that the others need none."""
    graph = read(walk_tangled)
    assign_once(graph.blocks)
    made = [s for block in graph.blocks.values() for s in block.find_insts(ir.Assign)]
    joined = {s.target.name for s in made if getattr(s.value, "op", "") == "phi"}
    texts = lower.lower(tangled, ("i64",), "tangled", detect_host())
    (text,) = (text for text in texts if re.search(r"^define .*walk_tangled", text, re.MULTILINE))
    places = set(re.findall(r'%"(\w[^"]*)" = alloca', text))
    assert places - {"try_state"} == joined
    assert "excinfo.1" not in text, "a call has no place for exceptions of its own"


def test_variables_on_tangled_paths_keep_their_values(call: Callable[..., None]) -> None:
    y = np.arange(3, 43)
    expected = [walk_tangled(n, i + 1) for i, n in enumerate(y.tolist())]
    call(tangled, "i64", y, len(y))
    assert y.tolist() == expected


def test_what_a_process_has_compiled_before_leaves_no_trace_in_a_kernel() -> None:
    first = optimized(power)
    optimized(scaling("scale_d", 7))
    assert optimized(power) == first


def optimized(template: Template) -> bytes:
    """The bitcode of a template, all that it calls compiled again."""
    lower._INLINE.clear()
    texts = lower.lower(template, ("i64",), template.name, detect_host())
    return emit.optimize(texts, template.name, detect_host())


def test_what_kernels_share_is_written_and_optimised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register tiles are most of the code of a product, and products of one model have the same."""
    target, ran = detect_host(), []
    optimize = emit._optimize

    def counting(texts, symbol, *rest):
        ran.append(symbol)
        return optimize(texts, symbol, *rest)

    monkeypatch.setattr(emit, "_optimize", counting)
    emit._optimize_shared.cache_clear()
    texts = []
    for symbol, transposed in (("product", 0), ("product_of_transposed", 1)):
        template = list_templates()["gemm"]
        texts.append(set(lower.lower(template, ("f32", 0, transposed), symbol, target)))
        emit.optimize(tuple(texts[-1]), symbol, target)
    shared = [text for text in texts[0] & texts[1] if emit._is_shared(text)]
    assert len(shared) > 1
    assert len(ran) == len(set(ran))
    assert {"product", "product_of_transposed"} < set(ran)
