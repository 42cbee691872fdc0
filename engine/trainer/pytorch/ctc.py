"""CTC losses inside of a module, as the op CTCLoss of kernels/ops/ctc.py.

torch's exporter has no ONNX function for them.  Targets that are joined to one list become rows
again: the exported program knows how long each is, and a list alone says nothing of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.kernels.vocabulary.op import OURS
from engine.trainer.pytorch.shorthand import Rule, read_arguments

_INPUTS = ("x", "labels", "steps", "counts")
_OPTIONS = ("blank", "zero_infinity")


@functools.cache
def _make_op(torch: Any) -> Any:
    """Return the operator, which torch knows from the first export on."""
    made = torch.library.Library("edgegrad", "FRAGMENT")
    tensors = ", ".join(f"Tensor {name}" for name in _INPUTS)
    made.define(f"ctc_loss({tensors}, int blank, int zero_infinity) -> Tensor")
    # A trace reads the shape of this, [batch], and that it has a gradient.
    made.impl("ctc_loss", lambda x, *_: x.sum((0, 2)), "CompositeExplicitAutograd")
    _make_op.library = made  # type: ignore[attr-defined]  # which ends with its last reference
    return torch.ops.edgegrad.ctc_loss.default


def list_translations(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return the translation by which `torch.onnx.export` writes the operator."""
    import onnxscript

    from engine.graphs.io.convert import make_schema

    opset = onnxscript.values.Opset(OURS, 1)
    schema = make_schema(OURS, "CTCLoss", _INPUTS[:1], integers=_INPUTS[1:], options=_OPTIONS)
    op = onnxscript.values.Op(opset, "CTCLoss", schema)

    def translate(x: Any, labels: Any, steps: Any, counts: Any, blank: int, zero: int) -> Any:
        return op(x, labels, steps, counts, blank=blank, zero_infinity=zero)

    return {_make_op(torch): translate}


def _write_loss(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `torch.nn.functional.ctc_loss` does."""
    names = "log_probs targets input_lengths target_lengths blank reduction zero_infinity"
    given = read_arguments(names, args, kwargs, blank=0, reduction="mean", zero_infinity=False)
    x, labels = given["log_probs"], given["targets"].to(torch.int64)
    steps, counts = (
        torch.as_tensor(given[name]).to(torch.int64).reshape(-1)
        for name in ("input_lengths", "target_lengths")
    )
    is_single = x.dim() == 2
    x = x.unsqueeze(1) if is_single else x
    if labels.dim() == 1:
        labels = _divide(torch, labels, counts)
    each = _make_op(torch)(
        x, labels, steps, counts, int(given["blank"]), int(bool(given["zero_infinity"]))
    )
    if given["reduction"] == "mean":
        return (each / counts.clamp(min=1).to(x.dtype)).mean()
    if given["reduction"] == "sum":
        return each.sum()
    return each.squeeze(0) if is_single else each


def _divide(torch: Any, labels: Any, counts: Any) -> Any:
    """Return rows of labels, each as long as all labels together, of a list of all."""
    total = labels.shape[0]
    begin = (counts.cumsum(0) - counts).unsqueeze(1)
    return labels[(begin + torch.arange(total)).clamp(max=total - 1)]


RULES: dict[str, Rule] = {"ctc_loss": _write_loss}
