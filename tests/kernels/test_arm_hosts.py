"""Products of small numbers on 64-bit ARM CPUs, by their names and features."""

from __future__ import annotations

from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from engine.kernels.machine.target import detect_host
from engine.tools.trimmed.targets import resolve


@pytest.mark.parametrize(
    ("cpu", "dots", "products"),
    [
        ("neoverse-n2", "smmla", ("bf16", "f16")),
        ("cortex-a76", "sdot", ("f16",)),
        ("apple-m2", "smmla", ("bf16", "f16")),
        ("cortex-a72", "", ()),
        ("generic", "", ()),
    ],
)
def test_the_name_of_an_arm_host_stands_for_its_products(
    cpu: str, dots: str, products: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM lists few features of ARM systems: by /proc/cpuinfo no products, for Apple's nothing."""
    triple = "arm64-apple-macosx11.0.0" if "apple" in cpu else "aarch64-unknown-linux-gnu"
    told = {} if "apple" in cpu else {"neon": True, "lse": True}
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: cpu)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: llvm.FeatureMap(told))
    target = detect_host.__wrapped__()
    assert (target.dots, target.products) == (dots, products)
    assert resolve(triple=triple, cpu=cpu).target.dots == dots


def test_a_better_instruction_needs_the_one_before_it() -> None:
    target = resolve("raspberrypi5").target
    assert replace(target, features="+neon,+i8mm").dots == ""
    assert replace(target, features="+neon,+i8mm,+dotprod").dots == "smmla"
