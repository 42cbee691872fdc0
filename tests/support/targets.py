"""Targets of other processors, and those that this machine can run."""

from __future__ import annotations

import platform

from engine.kernels.machine.target import Target, detect_host, make
from engine.tools.trimmed.targets import resolve

OTHERS = {
    "aarch64": make("aarch64-unknown-linux-gnu", "cortex-a72", "", "neon"),
    "x86-64-v3": make("x86_64-unknown-linux-gnu", "haswell", "", "avx2"),
    "x86-64-v2": make("x86_64-unknown-linux-gnu", "x86-64-v2", "", "sse", fma=False),
    "macos-arm64": make("arm64-apple-macosx11.0.0", "apple-m1", "", "neon"),
    "windows": make("x86_64-pc-windows-msvc", "x86-64-v3", "", "avx2"),
    "riscv64": resolve("riscv64").target,
    "armv7": resolve("armv7").target,
    "wasm32": resolve("wasm32").target,
    "wasm32-relaxed": resolve("wasm32-relaxed").target,
}


def list_runnable() -> dict[str, Target]:
    """Plainer targets than this machine's own that it can run."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"generic": make(detect_host().triple, "generic", "", "neon")}
    levels = ["x86-64-v2"] + ["x86-64-v3"] * (detect_host().vector == 64)
    return {name: OTHERS[name] for name in levels}
