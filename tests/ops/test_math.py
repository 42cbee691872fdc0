"""Every emitter of kernels/vector_ir/elementary.py and trigonometric.py: stated error, special
values, the same bits.

The bound asserted is the one the docstring states.  Oracles are numpy in the next wider type.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
from llvmlite import ir
from numba.core.cpu_options import FastMathOptions
from numba.core.fastmathpass import rewrite_module

from engine.kernels.vector_ir import elementary, trigonometric

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

ENGINES: list[Any] = []  # compiled code lives as long as its engine
I64 = ir.IntType(64)
INF, NAN = float("inf"), float("nan")
DTYPES = [np.float32, np.float64]
Array = Any


def _erf(x: Array) -> Array:
    """2/sqrt(pi) exp(-x**2) sum of 2**n x**(2n+1) / (2n+1)!!, whose terms have one sign."""
    a = np.minimum(np.abs(x), 7)
    term = total = a
    for n in range(1, 200):
        term = term * (2 * a * a / (2 * n + 1))
        total = total + term
    pi = x.dtype.type("3.14159265358979323846264338327950288")
    return np.copysign(2 / np.sqrt(pi) * np.exp(-a * a) * total, x)


def _sigmoid(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1) / (1 + z)


ORACLES: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "erf": _erf,
    "pow": np.power,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
CIRCULAR = ("sin", "cos", "tan")
LIMITS = {
    np.float32: 2.0**20,
    np.float64: 2.0**30,
}  # beyond, long double cannot judge these
UNARY = [name for name in ORACLES if name != "pow"]
EXACT: dict[str, Callable[..., Array]] = {
    "floor": np.floor,
    "round_even": np.rint,
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "copysign": np.copysign,
    "fmin": np.minimum,
    "fmax": np.maximum,
}
ARITY = {"pow": 2, "copysign": 2, "fmin": 2, "fmax": 2, "fma": 3}


# --- harness


def _emitter(name: str) -> Callable[..., Any]:
    emitter: Callable[..., Any] = vars(elementary).get(name) or vars(trigonometric)[name]
    return emitter


def _loop(module: ir.Module, name: str, element: Any, width: int) -> None:
    """Emit `k_<name>(x, ..., y, n)`: y[i] = name(x[i], ...), `width` lanes a turn, n > 0."""
    pointer = element.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * (ARITY.get(name, 1) + 1) + [I64])
    function = ir.Function(module, kind, f"k_{name}")
    *arrays, n = function.args
    entry, loop, done = (function.append_basic_block() for _ in range(3))
    b = ir.IRBuilder(entry)
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), entry)
    lanes = ir.VectorType(element, width).as_pointer() if width > 1 else pointer
    *sources, target = (b.bitcast(b.gep(a, [i]), lanes) for a in arrays)
    values = [b.load(p) for p in sources]
    store = b.store(_emitter(name)(b, *values), target)
    for access in (*values, store):
        access.align = 4
    following = b.add(i, I64(width))
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, n), loop, done)
    b.position_at_end(done)
    b.ret_void()
    for array in arrays:
        array.add_attribute("noalias")


def _module(names: Iterable[str], dtype: Any, width: int) -> ir.Module:
    module = ir.Module()
    for name in names:
        _loop(module, name, ir.FloatType() if dtype == np.float32 else ir.DoubleType(), width)
    return module


def _optimise(module: ir.Module, machine: Any) -> Any:
    parsed = llvm.parse_assembly(str(module))
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def _call(address: int, count: int, width: int, dtype: Any, *arrays: Array) -> Array:
    n = len(arrays[0])
    padded = [np.ones(-(-n // width) * width, dtype) for _ in (*arrays, None)]
    for whole, array in zip(padded, arrays, strict=False):
        whole[:n] = array
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (count + 1), ctypes.c_int64)
    kind(address)(*(a.ctypes.data for a in padded), len(padded[0]))
    return padded[-1][:n]


def _host(*, has_fma: bool) -> Any:
    """This CPU, as it is or without the instruction and what implies it."""
    features = llvm.get_host_cpu_features()
    if not has_fma:
        features.update(dict.fromkeys(["fma", "fma4", "avx512f"], False))
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )


@functools.cache
def compiled(dtype: Any, width: int, *, fused: bool = True) -> dict[str, Callable[..., Array]]:
    """All functions for this CPU; scalar ones as numba would leave them, with its flags added.

    With `fused` False as for a CPU without fused multiply-add: products are rounded before sums.
    """
    saved = elementary.fused.set(fused)
    module = _module([*ORACLES, *EXACT, *(["fma"] if fused else [])], dtype, width)
    elementary.fused.reset(saved)
    if width == 1:
        rewrite_module(module, FastMathOptions({"contract", "nsz", "arcp", "reassoc"}))
    machine = _host(has_fma=fused)
    jit = llvm.create_mcjit_compiler(_optimise(module, machine), machine)
    jit.finalize_object()
    ENGINES.append(jit)
    return {
        f.name[2:]: functools.partial(
            _call, jit.get_function_address(f.name), len(f.args) - 2, width, dtype
        )
        for f in module.functions
        if f.name.startswith("k_")
    }


def _samples(dtype: Any, count: int) -> Array:
    """All exponents and signs, then the ranges where something happens, then special values."""
    rng = np.random.default_rng(0)
    unsigned = np.uint32 if dtype == np.float32 else np.uint64
    top = np.iinfo(unsigned).max
    bits = rng.integers(0, top, 2 * count, dtype=unsigned, endpoint=True)
    wide = 110 if dtype == np.float32 else 760
    ranges = [(-wide, wide), (-10, 10), (-1.2, 1.2), (0.5, 2), (-1e-3, 1e-3), (-wide, -wide + 30)]
    uniform = [rng.uniform(low, high, count) for low, high in ranges]
    limits = np.finfo(dtype)
    special = [0.0, 1.0, INF, NAN, limits.max, limits.tiny, limits.smallest_subnormal]
    drawn = np.concatenate([*uniform, special, np.negative(special)])
    return np.concatenate([bits.view(dtype), drawn.astype(dtype)])


def _ulps(y: Array, exact: Array) -> Array:
    """|y - exact| in units in the last place of y's type; 0 for equal infinities and two NaN."""
    limits = np.finfo(y.dtype)
    exponent = np.maximum(np.frexp(np.abs(exact))[1], limits.minexp + 1)
    unit = np.ldexp(exact.dtype.type(1), exponent - 1 - limits.nmant)
    same = (y == exact.astype(y.dtype)) & np.isinf(y) | np.isnan(y) & np.isnan(exact)
    error = np.abs(y.astype(exact.dtype) - exact) / unit
    return np.where(same, 0, np.where(np.isnan(error), INF, error))


def _stated(name: str, dtype: Any) -> float:
    """The bound of the docstring: one for both types, or one for float and one for double."""
    bounds = re.findall(r"([\d.]+) ulp", _emitter(name).__doc__ or "")
    return float(bounds[0] if dtype == np.float32 else bounds[-1])


def _wider(dtype: Any) -> Any:
    if dtype == np.float32:
        return np.float64
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("long double is no wider than double here")
    return np.longdouble


def _same_bits(a: Array, b: Array) -> bool:
    unsigned = f"u{a.dtype.itemsize}"
    return bool(np.all((a.view(unsigned) == b.view(unsigned)) | np.isnan(a) & np.isnan(b)))


# --- tests


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_error_is_as_stated(name: str, dtype: Any, fused: bool) -> None:
    count = {np.float32: 500_000, np.float64: 60_000}[dtype]
    x = _samples(dtype, count if name != "erf" else count // 10)
    if name in CIRCULAR:
        x = x[~(np.abs(x) >= LIMITS[dtype])]
    with np.errstate(all="ignore"):
        result = compiled(dtype, 16, fused=fused)[name](x)
        error = _ulps(result, ORACLES[name](x.astype(_wider(dtype))))
    worst = int(np.argmax(error))
    assert error[worst] <= _stated(name, dtype), f"{name}({x[worst]!r})"


@functools.cache
def _hardest(dtype: Any) -> Array:
    """Of every binade from 1 on, numbers as near to a multiple of pi/2 as its floats come.

    Denominators q of the convergents of 2**e 2/pi are the integers that times it are nearest to an
    integer; a multiple of q with as many bits as a significand is such a float (Kahan, 1983).
    """
    limits = np.finfo(dtype)
    actual: list[float] = []
    with mpmath.workprec(limits.maxexp + 3 * limits.nmant + 60):
        two_over_pi = 2 / mpmath.pi
        for exponent in range(-limits.nmant, limits.maxexp - limits.nmant):
            rest, low, high = mpmath.ldexp(two_over_pi, exponent), 0, 1
            while high < 2 ** (limits.nmant + 1):
                factors = {-(-(2**limits.nmant) // high), (2 ** (limits.nmant + 1) - 1) // high}
                actual += [float(mpmath.ldexp(high * k, exponent)) for k in factors if k * high]
                rest = 1 / (rest - mpmath.floor(rest))
                low, high = high, int(mpmath.floor(rest)) * high + low
    return np.unique(np.array(actual, dtype))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CIRCULAR)
def test_circular_functions_hold_up_to_the_largest_float(
    name: str,
    dtype: Any,
    fused: bool,
) -> None:
    limits, rng = np.finfo(dtype), np.random.default_rng(4)
    spread = np.ldexp(rng.uniform(1, 2, 3000), rng.integers(0, limits.maxexp, 3000)).astype(dtype)
    hard = _hardest(dtype)
    x = np.concatenate([spread, rng.choice(hard, min(3000, len(hard)), replace=False)])
    near = np.array([LIMITS[dtype] * s for s in (0.99, 1, 1.01)], dtype)
    x = np.concatenate([x, near, [limits.max, 2.0**11, 2.0**20]]).astype(dtype)
    x = np.concatenate([x, -x])
    wide = _wider(dtype)
    with mpmath.workprec(limits.maxexp + 4 * limits.nmant):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x]
        high = np.array([float(v) for v in exact])
        low = np.array([float(v - mpmath.mpf(h)) for v, h in zip(exact, high, strict=True)])
    for width in (1, 16):
        result = compiled(dtype, width, fused=fused)[name](x)
        error = _ulps(result, high.astype(wide) + low.astype(wide))
        worst = int(np.argmax(error))
        assert error[worst] <= _stated(name, dtype), f"{name}({x[worst]!r})"


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_of_pow_is_as_stated(dtype: Any) -> None:
    rng, n, wide = np.random.default_rng(1), 100_000, _wider(dtype)
    x = np.abs(_samples(dtype, n)[: 2 * n])
    near = np.concatenate([rng.uniform(0.5, 2, n), 1 + rng.uniform(-1e-3, 1e-3, n)])
    x = np.concatenate([x, near.astype(dtype)])
    top = 120 if dtype == np.float32 else 1000
    y = np.concatenate([rng.uniform(-s, s, n) for s in (1, 3, top, 700 * top)]).astype(dtype)
    with np.errstate(all="ignore"):
        error = _ulps(compiled(dtype, 16)["pow"](x, y), np.power(x.astype(wide), y.astype(wide)))
    worst = int(np.argmax(error))
    assert error[worst] <= _stated("pow", dtype), f"pow({x[worst]!r}, {y[worst]!r})"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_vector_and_scalar_give_the_same_bits(name: str, dtype: Any) -> None:
    x = _samples(dtype, 20_000)
    expected = compiled(dtype, 16)[name](x)
    assert _same_bits(expected, compiled(dtype, 1)[name](x))
    assert _same_bits(expected, compiled(dtype, 4)[name](x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vector_and_scalar_pow_give_the_same_bits(dtype: Any) -> None:
    x = _samples(dtype, 20_000)
    y = np.random.default_rng(2).permutation(x)
    expected = compiled(dtype, 16)["pow"](x, y)
    assert _same_bits(expected, compiled(dtype, 1)["pow"](x, y))
    assert np.isfinite(expected).sum() > len(x) // 10


SPECIAL = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (1e4, INF), (-1e4, 0)],
    "expm1": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -1), (1e4, INF), (-1e4, -1)],
    "log": [(0, -INF), (-0.0, -INF), (1, 0), (-1, NAN), (INF, INF), (-INF, NAN), (-1e-40, NAN)],
    "log1p": [(0, 0), (-0.0, -0.0), (-1, -INF), (-2, NAN), (INF, INF), (-INF, NAN)],
    "softplus": [(INF, INF), (-INF, 0), (1e4, 1e4), (-1e4, 0)],
    "sigmoid": [(0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0), (1e4, 1), (-1e4, 0)],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e4, 1)],
    "erf": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (1e4, 1)],
    "sin": [(0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)],
    "tan": [(0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0, 0), (-0.0, -0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN)],
    "acos": [(1, 0), (1.5, NAN), (-1.5, NAN), (INF, NAN)],
    "atan": [(0, 0), (-0.0, -0.0)],
    "sinh": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-1e4, -INF)],
    "cosh": [(0, 1), (-0.0, 1), (INF, INF), (-INF, INF), (-1e4, INF)],
    "asinh": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1, 0), (INF, INF), (0.5, NAN), (-INF, NAN), (-3, NAN)],
    "atanh": [(0, 0), (-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN), (-INF, NAN)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, dtype: Any) -> None:
    x, y = np.array([*SPECIAL[name], (NAN, NAN)], dtype).T
    for width in (1, 16):
        result = compiled(dtype, width)[name](x)
        np.testing.assert_array_equal(result, y)
        number = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(y)[number])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["expm1", "log1p", "tanh", "erf", "sin", "tan", "atan", "sinh", "asinh"]
)
def test_subnormals_pass_through(name: str, dtype: Any) -> None:
    """f(x) = x for tiny x, or erf's 2/sqrt(pi) x to half a unit, without losing the low bits."""
    x = np.arange(1, 2000).astype(dtype) * np.finfo(dtype).smallest_subnormal
    slope = 2 / np.sqrt(np.pi) if name == "erf" else 1.0
    expected = np.rint(np.arange(1, 2000) * slope) * np.finfo(dtype).smallest_subnormal
    np.testing.assert_array_equal(compiled(dtype, 16)[name](x), expected.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_cases_of_pow_are_those_of_numpy(dtype: Any) -> None:
    limits = np.finfo(dtype)
    positive = [0, 1, 2, 3, 0.5, 1.5, INF, limits.tiny, limits.max, 2.0**limits.nmant + 1]
    values = np.array([*positive, *np.negative(positive), NAN], dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    result = compiled(dtype, 16)["pow"](x, y)
    np.testing.assert_allclose(result, expected, rtol=2 * limits.eps)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_pieces(name: str, dtype: Any) -> None:
    x = _samples(dtype, 5000)
    if name in {"floor", "round_even"}:
        x = np.concatenate([x, np.arange(-9, 9, 0.5, dtype=dtype)])
    rng = np.random.default_rng(3)
    arrays = [x, *(rng.permutation(x) for _ in range(ARITY.get(name, 1) - 1))]
    with np.errstate(all="ignore"):
        expected = EXACT[name](*arrays)
    for width in (1, 16):
        np.testing.assert_array_equal(compiled(dtype, width)[name](*arrays), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fma_rounds_once(dtype: Any) -> None:
    e = 2.0 ** -(np.finfo(dtype).nmant // 2 + 1)
    x, z = np.array([1 + e], dtype), np.array([-1 - 2 * e], dtype)
    assert compiled(dtype, 16)["fma"](x, x, z) == e * e


def _calls(module: ir.Module, cpu: str) -> set[str]:
    triple = "aarch64-linux-gnu" if cpu == "cortex-a72" else "x86_64-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=3, reloc="pic", codemodel="small"
    )
    text = machine.emit_assembly(_optimise(module, machine))
    called = set(re.findall(r"^\s+(?:bl|callq?|jmp|b)\s+\*?([A-Za-z_]\w*)", text, re.MULTILINE))
    return called - set(re.findall(r"^(\w+):", text, re.MULTILINE))


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4", "cortex-a72"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_called(cpu: str, dtype: Any) -> None:
    assert not _calls(_module([*ORACLES, *EXACT, "fma"], dtype, 8), cpu)


def test_unfused_nothing_is_called_without_the_instruction() -> None:
    def unfused() -> ir.Module:
        elementary.fused.set(False)
        return _module(ORACLES, np.float32, 4)

    assert _calls(_module(ORACLES, np.float32, 4), "x86-64-v2") == {"fma", "fmaf"}
    assert not _calls(contextvars.copy_context().run(unfused), "x86-64-v2")
