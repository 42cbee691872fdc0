"""Targets of this CPU, and of those that lack some of its instructions for integers."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from engine.kernels.machine.target import Target, detect_host
from engine.tools.trimmed.targets import resolve


class Evex(Target):
    """A target of AVX2 that sums by `vpdpbusd` of 256 bits, in the encoding of AVX-512."""

    @property
    def dots(self) -> str:
        return "vpdpbusd"


def find_target(name: str) -> Target:
    """Return the target of a name; "evex" stands for AVX-VNNI on CPUs that have AVX-512 VNNI."""
    if name != "native" and detect_host().arch != "x86_64":
        pytest.skip("an x86 target")
    if name != "evex":
        return resolve(name).target
    if detect_host().dots != "vpdpbusd" or detect_host().vector != 64:
        pytest.skip("needs AVX-512 VNNI")
    base = resolve("x86-64-v3").target
    made = Evex(**{field.name: getattr(base, field.name) for field in fields(base)})
    return replace(made, features="+avx512vl,+avx512vnni")
