"""Products of bf16 by tile registers: on an emulated unit, and as instructions of AMX."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.kernels.binaries.load import get_object
from engine.kernels.machine.target import detect_host
from engine.plan.plan import KernelSpec
from engine.tools.trimmed.targets import resolve
from tests.support.matrix_products import STORED, Product
from tests.support.pairs import count_dots, count_tile_products
from tests.support.tile_unit import UNIT, make_tile_target

TARGET = make_tile_target(kc=32)
# Activations and weights, and the gradient of the weights: A in rows and in columns.
WAYS = [(STORED[0], (0, 1)), (STORED[1], (1, 0))]
SIZES = [
    (1, 1, 1),
    (3, 5, 2),
    (15, 16, 31),
    (16, 64, 32),
    (17, 70, 33),
    (40, 129, 90),
    (100, 33, 7),
]
LINUX, SAPPHIRE_RAPIDS = "x86_64-unknown-linux-gnu", "sapphirerapids"


@pytest.fixture(autouse=True)
def _unit_is_used_as_it_may_be() -> Generator[None]:
    UNIT.products = 0
    yield
    assert not UNIT.faults
    assert UNIT.shapes is None, "a configuration is left"


@pytest.mark.parametrize(("stored", "trans"), WAYS)
def test_products_of_all_sizes(stored: tuple[str, str, str], trans: tuple[int, int]) -> None:
    for m, n, k in SIZES:
        UNIT.products = UNIT.tallest = 0
        Product(TARGET, stored, trans, m=m, n=n, k=k).assert_right()
        assert UNIT.products >= -(-m // 16) * -(-n // 16) * -(-k // 32)
        assert UNIT.tallest <= m, "rows that A has not"


@pytest.mark.parametrize(("stored", "trans"), WAYS)
def test_rows_have_the_same_bits_wherever_threads_divide_them(
    stored: tuple[str, str, str], trans: tuple[int, int]
) -> None:
    """K in several blocks, and the last one of an odd length."""
    size: dict[str, Any] = {"m": 110, "n": 150, "k": 2 * 2 * TARGET.kc + 5}
    alone = Product(TARGET, stored, trans, **size).assert_right()
    for threads in (2, 5):
        outcome = Product(TARGET, stored, trans, **size, threads=threads).run()
        np.testing.assert_array_equal(outcome.view(np.uint8), alone.view(np.uint8))


@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_relu_come_with_the_sums(relu: bool) -> None:
    for m, n, k in ((5, 70, 9), (20, 40, 2 * 2 * TARGET.kc + 1)):
        Product(TARGET, *WAYS[0], m=m, n=n, k=k, bias=True, relu=relu).assert_right()


@pytest.mark.parametrize("reset", [False, True])
def test_rows_that_are_computed_twice_are_added_once(reset: bool) -> None:
    Product(TARGET, *WAYS[1], m=30, n=70, k=19, reset=reset).assert_right()


@pytest.mark.parametrize(("stored", "trans"), WAYS)
@pytest.mark.parametrize("m", [8, 20])
def test_what_lies_after_a_row_is_not_a_factor(
    stored: tuple[str, str, str], trans: tuple[int, int], m: int
) -> None:
    product = Product(TARGET, stored, trans, m=m, n=20, k=5)
    (product.a[:, :, 3] if trans[0] else product.a[:, 3])[...] = 0x7FC0  # NaN in row 3 of op(A)
    made = product.run()[0]
    is_nan = made == 0x7FC0 if stored[2] == "bf16" else np.isnan(made)
    np.testing.assert_array_equal(is_nan.any(axis=1), np.arange(m) == 3)


@pytest.mark.parametrize("trans", [(0, 0), (1, 0)])
def test_a_target_that_names_them_has_their_instructions(trans: tuple[int, int]) -> None:
    """A configuration and its release in each of three functions, and no products of pairs."""
    target = resolve(triple=LINUX, cpu=SAPPHIRE_RAPIDS, features="+amx-bf16").target
    code = get_object(
        KernelSpec("gemm_mixed", ("f32", "bf16", "f32", "bf16", "bf16", *trans)), target
    )
    assert target.has_tile_registers
    assert count_tile_products(code) == {"ldtilecfg": 3, "tdpbf16ps": 4 + 2 + 1, "tilerelease": 3}
    assert not count_dots(code, target.arch)


@pytest.mark.parametrize(
    "words",
    [
        {"triple": LINUX, "cpu": SAPPHIRE_RAPIDS},
        {"triple": LINUX, "cpu": "x86-64-v3", "features": "+amx-bf16"},
        {"triple": "x86_64-w64-windows-gnu", "cpu": SAPPHIRE_RAPIDS, "features": "+amx-bf16"},
    ],
)
def test_others_have_none(words: dict[str, str]) -> None:
    """The name of a core is not enough, and only Linux gives permission."""
    assert not resolve(**words).target.has_tile_registers


def test_a_library_can_have_other_code_where_they_are_refused() -> None:
    cpus = f"{SAPPHIRE_RAPIDS},x86-64-v4"
    platform = resolve(triple=LINUX, cpu=cpus, features="+amx-bf16")
    assert [target.has_tile_registers for target in platform.targets] == [True, False]


def test_this_process_does_not_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM lists what the CPU has, whether or not the process has permission to use it."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    features.update({name: True for name in ("avx512bf16", "amx-bf16", "amx-tile")})
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    target = replace(detect_host.__wrapped__(), vector=64)
    assert not target.has_tile_registers
    assert "+amx" not in target.features
