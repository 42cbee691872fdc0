"""The signal of a step that trains and updates in one plan: whether parameters may change.

Forward  y[0] = no fault so far, and the loss is finite or not asked to be
Source   the update signal of onnxruntime's optimizers; GradScaler of torch.amp skips steps likewise

All updates of the plan read it, so that it comes before the first of them.  A run that met bad data
ends at the barrier before it, and no parameter and no state has changed.
"""

from __future__ import annotations

from typing import Any

from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, kernel
from engine.kernels.vocabulary.op import OURS, Lowering, Op, Site, TensorType
from engine.runtime.context import STATUS

FLAG = TensorType("b1", (1,))


@kernel("loss:T* check:b1* y:b1* fault:i64* n:i64", words={"fault": STATUS})
def update_signal(target: Target, T: str) -> Body:
    """y[0] = the kind of the fault is 0, and the loss is finite where check[0].  loss: T[n]."""

    def body(loss, check, y, fault, n, tid, nthreads):
        if tid == 0:
            is_fine = fault.kind == 0
            if check[0] != 0:
                for i in range(n):
                    if loss[i] - loss[i] != 0.0:  # NaN of infinities and of NaN
                        is_fine = False
            y[0] = is_fine

    return body


def _infer(site: Site) -> tuple[TensorType, ...]:
    if site.type(1) != FLAG:
        site.wrong(f"input 1 is {site.type(1)}; expected {FLAG}")
    return (FLAG,)


def _lower(lowering: Lowering) -> None:
    loss, check, y = lowering.x(0), lowering.x(1), lowering.y(0)
    args: list[Any] = [("r", loss), ("r", check), ("w", y), ("u", lowering.fault())]
    lowering.call(update_signal(loss.type.dtype), args, [loss.type.size])


OPS = (
    Op(
        name="UpdateSignal",
        domain=OURS,
        infer=_infer,
        lower=_lower,
        calls=(update_signal,),
        internal=True,
    ),
)
KERNELS = (update_signal,)
