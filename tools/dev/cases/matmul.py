"""Gemm, MatMul and their fused forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.activation import activated
from engine.tools.dev.cases.case import Case, f32


def _fused_matmul(a: Any, b: Any, alpha: float = 1.0, transA: int = 0, transB: int = 0,
                  transBatchA: int = 0, transBatchB: int = 0) -> Any:  # fmt: skip
    a = np.moveaxis(a, 0, -2) if transBatchA else a
    b = np.moveaxis(b, 0, -2) if transBatchB else b
    a = np.swapaxes(a, -1, -2) if transA else a
    b = np.swapaxes(b, -1, -2) if transB else b
    return [alpha * (a @ b)]


def _fused_gemm(a: Any, b: Any, c: Any, transB: int = 0, activation: str = "", alpha: float = 1.0,
                beta: float = 1.0, **params: float) -> Any:  # fmt: skip
    y = alpha * (a @ (b.T if transB else b)) + beta * c
    return [activated(y, activation, *params.values())]


ACTIVATED: dict[str, dict[str, float]] = {
    "Tanh": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {}, "HardSwish": {},
    "Elu": {"alpha": 0.3}, "LeakyRelu": {"alpha": 0.2}, "Selu": {"alpha": 1.5, "gamma": 1.2},
    "HardSigmoid": {"alpha": 0.07, "beta": 0.4}, "ThresholdedRelu": {"alpha": -0.5},
}  # fmt: skip

CASES = (
    Case("Gemm", (f32(5, 7), f32(7, 3), f32(3)), grad=(0, 1, 2)),
    Case("Gemm", (f32(64, 130), f32(70, 130), f32(70)), {"transB": 1}, grad=(0, 1, 2), bench=True),
    Case("Gemm", (f32(33, 20), f32(33, 65), None), {"transA": 1}, grad=(0, 1)),
    Case("Gemm", (f32(9, 4), f32(5, 9)), {"transA": 1, "transB": 1, "alpha": 0.5}, grad=(0, 1)),
    Case("Gemm", (f32(4, 6), f32(6, 5), f32(4, 1)), {"alpha": 2.0, "beta": 0.25}, grad=(0, 1, 2)),
    Case("Gemm", (f32(4, 6), f32(6, 5), f32(4, 5)), grad=(0, 1, 2)),
    Case("Gemm", (f32(4, 6), f32(6, 5), f32(1)), grad=(0, 1, 2)),
    Case("Gemm", (f32(4, 6), f32(6, 5), f32()), grad=(0, 1, 2)),
    Case("Gemm", (f32(1, 300), f32(300, 1), f32(1, 1)), grad=(0, 1, 2)),
    Case("Gemm", (f32(131, 600), f32(600, 577), f32(577)), grad=(0, 1, 2), tol=4e-6),
    # Rows left over, deep blocks of one size, and columns that are read where they are.
    Case("Gemm", (f32(14, 33), f32(33, 80), f32(80)), grad=(0, 1, 2)),
    # Few rows: B is read where it is, as it is stored; more columns than a thread makes together.
    *(Case("Gemm", (f32(m, 75), f32(75, 150) if rows else f32(150, 75), f32(150)),
           {"transB": int(not rows)}, grad=(0, 1, 2))
      for m in (1, 2, 3, 8) for rows in (True, False)),
    Case("Gemm", (f32(1, 32), f32(32, 4200)), grad=(0, 1)),
    Case("Gemm", (f32(50, 1), f32(50, 20), f32(20)), {"transA": 1}, grad=(0, 1, 2)),
    Case("Gemm", (f32(1, 784), f32(500, 784), f32(500)), {"transB": 1}, bench=True),
    Case("Gemm", (f32(1, 768), f32(768, 2304), f32(2304)), bench=True),
    Case("FusedMatMul", (f32(12, 1, 64), f32(12, 40, 64)), {"transB": 1, "alpha": 0.125},
         grad=(0, 1), domain=MS, reference=_fused_matmul),
    Case("MatMul", (f32(3, 27, 400), f32(400, 96)), grad=(0, 1), tol=4e-6),
    Case("MatMul", (f32(6, 20, 40), f32(6, 40, 32)), grad=(0, 1), bench=True),
    Case("MatMul", (f32(3, 4), f32(4, 5)), grad=(0, 1)),
    Case("MatMul", (f32(4), f32(4)), grad=(0, 1)),
    Case("MatMul", (f32(4), f32(4, 5)), grad=(0, 1)),
    Case("MatMul", (f32(3, 4), f32(4)), grad=(0, 1)),
    Case("MatMul", (f32(4), f32(2, 4, 5)), grad=(0, 1)),
    Case("MatMul", (f32(2, 3, 4), f32(4)), grad=(0, 1)),
    Case("MatMul", (f32(2, 3, 4), f32(4, 5)), grad=(0, 1)),
    Case("MatMul", (f32(3, 4), f32(2, 4, 5)), grad=(0, 1)),
    Case("MatMul", (f32(2, 3, 17, 33), f32(2, 3, 33, 20)), grad=(0, 1)),
    Case("MatMul", (f32(2, 1, 3, 4), f32(5, 4, 6)), grad=(0, 1)),
    Case("MatMul", (f32(2, 1, 2, 3, 4), f32(3, 1, 4, 5)), grad=(0, 1)),
    Case("FusedMatMul", (f32(2, 3, 4), f32(2, 5, 4)), {"transB": 1, "alpha": 0.5}, grad=(0, 1),
         domain=MS, reference=_fused_matmul),
    Case("FusedMatMul", (f32(2, 4, 3), f32(2, 4, 5)), {"transA": 1}, grad=(0, 1), domain=MS,
         reference=_fused_matmul),
    Case("FusedMatMul", (f32(4, 3), f32(6, 4)), {"transA": 1, "transB": 1}, grad=(0, 1), domain=MS,
         reference=_fused_matmul),
    # Batch axes after axis 0: of both operands, of one of them, and broadcast.
    Case("FusedMatMul", (f32(4, 2, 3, 5), f32(6, 2, 3, 5)),
         {"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": 0.5}, grad=(0, 1), domain=MS,
         reference=_fused_matmul),
    Case("FusedMatMul", (f32(5, 2, 4), f32(2, 5, 3)), {"transBatchA": 1, "transA": 1}, grad=(0, 1),
         domain=MS, reference=_fused_matmul),
    Case("FusedMatMul", (f32(4, 2, 1, 5), f32(5, 1, 3, 6)), {"transBatchA": 1, "transBatchB": 1},
         grad=(0, 1), domain=MS, reference=_fused_matmul),
    Case("MatMul", (f32(3, 0), f32(0, 4)), name="matmul-of-nothing"),
    Case("FusedGemm", (f32(9, 0), f32(21, 0), f32(21)), {"transB": 1, "activation": "Relu"},
         domain=MS, reference=_fused_gemm, name="fused-gemm-of-nothing"),
    Case("FusedGemm", (f32(9, 40), f32(21, 40), f32(21)), {"transB": 1, "activation": "Relu"},
         domain=MS, reference=_fused_gemm),
    *(Case("FusedGemm", (f32(4, 6), f32(5, 6), f32(5)),
           {"transB": 1, "activation": name} | {f"activation_{p}": v for p, v in params.items()},
           grad=(0, 1, 2), domain=MS, reference=_fused_gemm)
      for name, params in ACTIVATED.items()),
)  # fmt: skip
