"""Products of matrices and factors of 16 bits, against float64 of the same rounded factors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.errors import UnsupportedOpError
from engine.kernels.binaries.load import get_object
from engine.kernels.loops.gemm import lower_gemm
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.op import Site
from engine.plan.plan import KernelSpec
from tests.support.matrix_products import STORED, Product
from tests.support.pairs import PAIRED, FactorTarget, count_dots, with_factors
from tests.support.product_calls import Calls, load_as, store_as

TRANS = [(0, 0), (0, 1), (1, 0)]
SIZES = [(1, 1, 1), (3, 5, 2), (7, 70, 33), (14, 16, 18), (2, 129, 5), (100, 33, 1)]


def targets() -> list[Target]:
    """This CPU as it is, and as at the smallest level: float32 factors, narrower vectors.

    The portable variants of factors of 16 bits run on the smallest.
    """
    small = list_levels()[-1].make_target()
    return [detect_host(), small, with_factors(small)]


def ids(target: Target) -> str:
    return target.cpu + "-factors" * isinstance(target, FactorTarget)


def cases() -> Iterator[tuple[tuple[str, str, str], tuple[int, int]]]:
    """Every way of storing with a layout: all layouts of the first, of others the usual."""
    yield from itertools.product(STORED[:2], TRANS)
    yield from zip(STORED[2:], itertools.cycle(TRANS), strict=False)


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize(("stored", "trans"), [*cases()])
def test_products_of_all_sizes(
    target: Target, stored: tuple[str, str, str], trans: tuple[int, int]
) -> None:
    for m, n, k in SIZES:
        Product(target, stored, trans, m=m, n=n, k=k).assert_right()


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize("stored", STORED[:2])
def test_a_deep_product_has_the_bits_of_one_thread(
    target: Target, stored: tuple[str, str, str]
) -> None:
    """K in several blocks, columns too; sums wait for the last block in float32."""
    size: dict[str, Any] = {"m": 110, "n": 600, "k": 2 * 2 * target.kc + 5}
    alone = Product(target, stored, **size).assert_right()
    for threads in (2, 5):
        outcome = Product(target, stored, **size, threads=threads).run()
        np.testing.assert_array_equal(outcome.view(np.uint8), alone.view(np.uint8))


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_relu_come_before_the_rounding(target: Target, relu: bool) -> None:
    for m, n, k in ((5, 70, 9), (20, 40, 2 * 2 * target.kc + 1)):
        Product(target, STORED[0], m=m, n=n, k=k, bias=True, relu=relu).assert_right()


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize("reset", [False, True])
def test_a_gradient_of_float32_is_added_to(target: Target, reset: bool) -> None:
    Product(target, STORED[1], (1, 0), m=30, n=70, k=19, reset=reset).assert_right()


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize("shared", [False, True])
def test_batches(target: Target, shared: bool) -> None:
    batch = (6, 1 if shared else 6)
    for threads in (1, 4):
        product = Product(target, STORED[0], (0, 1), m=9, n=20, k=7, batch=batch, threads=threads)
        product.assert_right()


@pytest.mark.parametrize("target", targets(), ids=ids)
@pytest.mark.parametrize("trans", TRANS)
def test_what_lies_after_a_row_is_not_a_factor(target: Target, trans: tuple[int, int]) -> None:
    """An odd K leaves half a word: NaN of the next row, or after the last, must not get there."""
    product = Product(target, STORED[1], trans, m=8, n=20, k=5)
    spoilt = product.a[:, :, 3] if trans[0] else product.a[:, 3]
    spoilt[...] = 0x7FC0  # row 3 of op(A)
    made = product.run()[0]
    assert np.isnan(made[3]).all()
    assert np.isfinite(np.delete(made, 3, axis=0)).all()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3.4e38])
def test_what_is_not_finite_stays_so(special: float) -> None:
    """3.4e38 is beyond the largest bf16: it rounds to infinity."""
    for target in targets():
        product = Product(target, ("f32", "f32", "bf16"), m=2, n=3, k=3)
        product.stored = ("bf16", "f32", "bf16")
        product.a = store_as(np.zeros((1, 2, 3)), "bf16")
        product.b[...], product.bias = 1, np.full(3, special, np.float32)
        with np.errstate(over="ignore"):
            expected = np.inf if special == 3.4e38 else special
        np.testing.assert_array_equal(load_as(product.run(), "bf16"), np.full((1, 2, 3), expected))


def test_what_products_refuse() -> None:
    class Named(Calls):
        site = Site(
            op="MatMul", domain="", name="product", opset=13, ins=(), attrs={}, values=(), n_outs=1
        )

    calls: Any = Named(detect_host(), 1, "bf16")
    a = calls.put("a", np.zeros((2, 2), np.uint16), "bf16")
    b, y = (calls.put(name, np.zeros((2, 2)), "f64") for name in "by")
    with pytest.raises(
        UnsupportedOpError, match="A, B and the result are bf16, f64, f64; supported: f32"
    ):
        lower_gemm(calls, a, b, y, mnk=(2, 2, 2))


def test_factors_follow_from_the_features() -> None:
    plain = dataclasses.replace(
        detect_host(), triple="x86_64-unknown-linux-gnu", features="", vector=64
    )
    arm = dataclasses.replace(plain, triple="aarch64-unknown-linux-gnu", vector=16)
    with_bf16 = [
        dataclasses.replace(plain, features="+avx512f,+avx512bf16"),
        dataclasses.replace(arm, features="+neon,+bf16"),
    ]
    assert [t.products for t in (plain, arm)] == [(), ()]
    assert [t.products for t in with_bf16] == [("bf16",), ("bf16",)]
    assert dataclasses.replace(arm, features="+fullfp16").products == ("f16",)
    assert dataclasses.replace(arm, features="+bf16,+fullfp16").products == ("bf16", "f16")
    assert dataclasses.replace(with_bf16[0], vector=32).products == ()


@pytest.mark.parametrize("target", PAIRED, ids=ids)
def test_tiles_are_of_dot_products_where_there_are_such(target: Target) -> None:
    spec = KernelSpec("gemm_mixed", ("f32", "bf16", "f32", "bf16", "bf16", 0, 0))
    assert count_dots(get_object(spec, target), target.arch) >= target.mr * target.nv
