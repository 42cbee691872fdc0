"""Products of matrices by a kernel, and the bounds of their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.kernels.loops.gemm import lower_gemm
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.tile import RUN
from tests.support.product_calls import Calls, load_as, store_as

UNIT = 2.0**-24  # rounding unit of float32
UNITS = dict(f32=UNIT, bf16=2.0**-8, f16=2.0**-11)
SMALLEST = dict(f32=2.0**-149, bf16=2.0**-126, f16=2.0**-25)
# As they are stored A, B, C: activations and weights, gradients of both, and what is left.
STORED = [
    ("bf16", "f32", "bf16"), ("bf16", "bf16", "f32"), ("f32", "bf16", "f32"),
    ("f16", "f32", "f16"), ("f16", "f16", "f32"), ("f32", "f32", "f32"),
]  # fmt: skip


class Product:
    """C = act(op(A) op(B) (+ C) (+ bias)), as in a kernel and in float64."""

    def __init__(
        self, target: Target, stored: tuple[str, str, str], trans: tuple[int, int] = (0, 0),
        *, m: int, n: int, k: int, batch: tuple[int, int] = (1, 1), threads: int = 1,
        bias: bool = False, relu: bool = False, reset: bool | None = None,
    ) -> None:  # fmt: skip
        """batch: how many matrices A and C have, and B; reset: what the flag says, if any."""
        rng = np.random.default_rng(m + n + k)
        A, B, C = stored
        self.target, self.stored, self.trans, self.sizes = target, stored, trans, (m, n, k)
        self.threads, self.batch, self.relu, self.reset = threads, batch, relu, reset
        self.a = store_as(rng.standard_normal((batch[0], *((k, m) if trans[0] else (m, k)))), A)
        self.b = store_as(rng.standard_normal((batch[1], *((n, k) if trans[1] else (k, n)))), B)
        self.c = store_as(rng.standard_normal((batch[0], m, n)), C)
        self.bias = rng.standard_normal(n).astype("f4") if bias else None
        self.P = "f32"

    def run(self) -> Array:
        """Return C as it is stored."""
        half = next((T for T in self.stored if T != "f32"), "bf16")
        calls: Any = Calls(self.target, self.threads, half)
        (A, B, C), (m, n, k) = self.stored, self.sizes
        given = zip("aby", (self.a, self.b, self.c), (A, B, C), strict=True)
        a, b, y = (calls.put(name, x, T) for name, x, T in given)
        steps = ((self.batch[0],), (m * k,), (n * k * (self.batch[1] > 1),))
        more: dict[str, Any] = {"batch": steps} if self.batch[0] > 1 else {}
        if self.bias is not None:
            more["bias"] = calls.put("bias", self.bias, "f32")
        if self.reset is not None:
            more["reset"] = calls.put("reset", np.array([self.reset]), "b1")
        trans = (bool(self.trans[0]), bool(self.trans[1]))
        lower_gemm(calls, a, b, y, mnk=(m, n, k), trans=trans, relu=self.relu, **more)
        is_mixed = any(spec.template == "gemm_mixed" for spec in calls.kernels)
        self.P = str(calls.kernels[0].params[-3]) if is_mixed else "f32"
        made: Array = calls.get("y", self.c.shape)
        return made

    def assert_right(self) -> Array:
        """Run it, and compare it with float64; return C as it is stored."""
        A, B, C = self.stored
        made = self.run()
        x, w = load_as(self.a, A), load_as(self.b, B)
        if self.P != "f32":
            x, w = (load_as(store_as(v, self.P), self.P) for v in (x, w))
        x = x.swapaxes(1, 2) if self.trans[0] else x
        w = w.swapaxes(1, 2) if self.trans[1] else w
        terms = [0.0 if self.bias is None else self.bias.astype("f8")]
        if self.reset is False:
            terms.append(load_as(self.c, C))
        expected, size = x @ w + sum(terms), np.abs(x) @ np.abs(w) + sum(map(np.abs, terms))
        if self.relu:
            expected = np.maximum(expected, 0)
        # Each of k products and of the terms is added with an error of a unit of the sum so far,
        # where products of pairs are added one by one; C is rounded once.
        bound = (self.sizes[2] + len(terms) + 1) * UNIT * size
        if self.P == "f16":
            chain = min(RUN // 2 + 4, self.sizes[2] + 1)
            bound = bound + chain * UNITS["f16"] * (np.abs(x) @ np.abs(w))
            bound = bound + self.sizes[2] * SMALLEST["f16"]
        bound = bound + (np.abs(expected) + bound) * UNITS[C] + SMALLEST[C]
        error = np.abs(load_as(made, C) - expected)
        assert np.all(error <= bound), (error / bound).max()
        return made
