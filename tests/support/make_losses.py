"""Makes tests/data/torch_losses.json: values and gradients of losses by PyTorch's autograd.

    python -m tests.support.make_losses

Needs torch and torchvision.  The losses that these have are theirs; the others are written out in
torch, by the formula of the paper that the class of the loss names.  All is in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch.nn import functional

from tests.support.places import DATA

VALUES = DATA / "torch_losses.json"
Loss = Callable[..., torch.Tensor]


def numbers(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).round(decimals=3)


def reduced(each: torch.Tensor, reduction: str, counts: torch.Tensor | None = None) -> torch.Tensor:
    if reduction == "mean" and counts is not None:
        return each.sum() / counts.sum()
    return each.mean() if reduction == "mean" else each.sum()


def focal_sigmoid(
    x: torch.Tensor, t: torch.Tensor, gamma: float = 2.0, alpha: float | None = None,
    reduction: str = "mean", ignore_index: int | None = None,
) -> torch.Tensor:  # fmt: skip
    kept = torch.ones_like(x) if ignore_index is None else (t != ignore_index).double()
    each = torchvision.ops.sigmoid_focal_loss(
        x, t * kept, -1 if alpha is None else alpha, gamma, "none"
    )
    return reduced(each * kept, reduction, kept)


def focal_softmax(
    x: torch.Tensor, labels: torch.Tensor, gamma: float = 2.0, alpha: Any = None,
    reduction: str = "mean", ignore_index: int | None = None,
) -> torch.Tensor:  # fmt: skip
    kept = torch.ones(labels.shape).bool() if ignore_index is None else labels != ignore_index
    index = torch.where(kept, labels, 0)
    p = torch.softmax(x, 1).gather(1, index[:, None])[:, 0]
    factor = 1.0 if alpha is None else torch.tensor(alpha, dtype=x.dtype)[index]
    each = factor * (1 - p) ** gamma * -torch.log(p)
    return reduced(each * kept, reduction, kept)


def focal(x: torch.Tensor, t: torch.Tensor, activation: str = "sigmoid", **options: Any) -> Any:
    return (focal_sigmoid if activation == "sigmoid" else focal_softmax)(x, t, **options)


def boxes_loss(of: Loss) -> Loss:
    def loss(
        x: torch.Tensor, t: torch.Tensor, weight: torch.Tensor | None = None,
        boxes: str = "xyxy", weighted: bool = False, reduction: str = "mean",
    ) -> torch.Tensor:  # fmt: skip
        pair = [torchvision.ops.box_convert(b, boxes, "xyxy") for b in (x, t)]
        each = of(*pair, reduction="none")
        return reduced(each if weight is None else each * weight, reduction, weight)

    return loss


def dice(
    x: torch.Tensor, t: torch.Tensor, activation: str = "softmax", smooth: float = 1.0,
    batch: bool = False, weight: Any = None, ignore_index: int | None = None,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    kept = torch.ones(t.shape).bool() if ignore_index is None else t != ignore_index
    if activation == "softmax":
        p = torch.softmax(x, 1)
        hot = functional.one_hot(torch.where(kept, t, 0), x.shape[1])
        truth, kept = hot.movedim(-1, 1).double(), kept[:, None]
    else:
        p, truth = torch.sigmoid(x), t
    p, truth = p * kept, truth * kept
    axes = [*([0] if batch else []), *range(2, x.ndim)]
    sums = [v.sum(axes) if axes else v for v in (p * truth, p, truth)]
    each = 1 - (2 * sums[0] + smooth) / (sums[1] + sums[2] + smooth)
    if weight is None:
        return reduced(each, reduction)
    factors = torch.tensor(weight, dtype=x.dtype).expand_as(each)
    return reduced(each * factors, reduction, factors)


def batch_hard(
    x: torch.Tensor, labels: torch.Tensor, margin: float = 1.0, reduction: str = "mean"
) -> torch.Tensor:
    actual = []
    for i in range(len(x)):
        d = [(x[i] - x[j]).pow(2).sum().sqrt() for j in range(len(x))]
        near = [d[j] for j in range(len(x)) if labels[j] == labels[i] and j != i]
        far = [d[j] for j in range(len(x)) if labels[j] != labels[i]]
        if near and far:
            actual.append(torch.relu(margin + torch.stack(near).max() - torch.stack(far).min()))
    return reduced(torch.stack(actual), reduction)


def info_nce(
    a: torch.Tensor, b: torch.Tensor, temperature: float = 0.07, normalize: bool = True,
    symmetric: bool = True, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    if normalize:
        a, b = functional.normalize(a), functional.normalize(b)
    scores = a @ b.T / temperature
    labels = torch.arange(len(a))
    loss = functional.cross_entropy(scores, labels, reduction=reduction)
    if symmetric:
        loss = (loss + functional.cross_entropy(scores.T, labels, reduction=reduction)) / 2
    return loss


def ctc(
    x: torch.Tensor, targets: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor,
    logits: bool = True, batch_first: bool = False, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Compute the CTC loss; torch's gradient is always with respect to scores."""
    logs = functional.log_softmax(x, -1)
    return functional.ctc_loss(
        logs.transpose(0, 1) if batch_first else logs, targets, inputs, lengths, **options
    )


def cross_entropy(
    x: torch.Tensor, t: torch.Tensor, probabilities: bool = False, weight: Any = None,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    factors = None if weight is None else torch.tensor(weight, dtype=x.dtype)
    return functional.cross_entropy(x, t, factors, **options)


LOSSES: dict[str, Loss] = {
    "CrossEntropyLoss": cross_entropy,
    "CTCLoss": ctc,
    "FocalLoss": focal,
    "GIoULoss": boxes_loss(torchvision.ops.generalized_box_iou_loss),
    "CIoULoss": boxes_loss(torchvision.ops.complete_box_iou_loss),
    "DiceLoss": dice,
    "TripletMarginLoss": functional.triplet_margin_loss,
    "BatchHardTripletLoss": batch_hard,
    "InfoNCELoss": info_nce,
}


def list_rows() -> list[tuple[str, dict[str, Any], list[torch.Tensor], list[torch.Tensor]]]:
    """Losses with their options, the values that they are taken of, and their targets."""
    x, truth = numbers(4, 3, scale=2), torch.rand(4, 3, dtype=torch.float64).round().abs()
    soft = torch.rand(4, 3, dtype=torch.float64).round(decimals=3)
    holes = truth.clone()
    holes[1, 1] = holes[2, 0] = -1
    scores, classes = numbers(2, 4, 3, scale=2), torch.tensor([[0, 3, 1], [2, 2, 0]])
    some = torch.tensor([[0, 9, 1], [2, 9, 0]])
    actual: list[Any] = [
        ("FocalLoss", {}, [x], [truth]),
        ("FocalLoss", {"alpha": 0.25, "reduction": "sum"}, [x], [truth]),
        ("FocalLoss", {"gamma": 0.5, "alpha": 0.75}, [x], [soft]),
        ("FocalLoss", {"gamma": 0.0, "alpha": 0.5}, [x], [truth]),
        ("FocalLoss", {"ignore_index": -1}, [x], [holes]),
        ("FocalLoss", {"activation": "softmax"}, [scores], [classes]),
        ("FocalLoss", {"activation": "softmax", "gamma": 1.5, "alpha": [0.2, 1.0, 0.5, 2.0],
                       "reduction": "sum"}, [scores], [classes]),
        ("FocalLoss", {"activation": "softmax", "gamma": 0.5, "alpha": [0.2, 1.0, 0.5, 2.0],
                       "ignore_index": 9}, [scores], [some]),
        ("FocalLoss", {"activation": "softmax", "gamma": 0.0}, [scores], [classes]),
    ]  # fmt: skip
    corner, size = numbers(2, 5, 2).abs(), numbers(2, 5, 2).abs() + 0.3
    truth_corner = (corner + 0.2 * numbers(2, 5, 2)).round(decimals=3)
    truth_corner[0, 0] += 9.0  # a pair that is apart
    truth_size = (size + 0.1 * numbers(2, 5, 2)).abs().round(decimals=3)
    corners = [torch.cat([a, a + b], -1) for a, b in ((corner, size), (truth_corner, truth_size))]
    centres = [torch.cat([a, b], -1) for a, b in ((corner, size), (truth_corner, truth_size))]
    weight = torch.tensor([[1, 0, 2, 0.5, 1], [0, 0, 1, 1, 0]], dtype=torch.float64)
    for name in ("GIoULoss", "CIoULoss"):
        actual += [
            (name, {}, corners[:1], corners[1:]),
            (name, {"boxes": "cxcywh", "reduction": "sum"}, centres[:1], centres[1:]),
            (name, {"weighted": True}, corners[:1], [corners[1], weight]),
            (name, {"weighted": True, "reduction": "sum"}, corners[:1], [corners[1], weight]),
        ]
    mask = torch.rand(2, 4, 3, dtype=torch.float64).round()
    factors = [0.0, 1.0, 2.0, 0.5]
    actual += [
        ("DiceLoss", {}, [scores], [classes]),
        ("DiceLoss", {"batch": True, "smooth": 1e-3, "reduction": "sum"}, [scores], [classes]),
        ("DiceLoss", {"weight": factors, "ignore_index": 9}, [scores], [some]),
        ("DiceLoss", {"weight": factors, "reduction": "sum"}, [scores], [classes]),
        ("DiceLoss", {"activation": "sigmoid"}, [scores], [mask]),
        ("DiceLoss", {"activation": "sigmoid", "batch": True}, [x], [truth]),
        ("DiceLoss", {"activation": "sigmoid", "ignore_index": -1}, [x], [holes]),
    ]
    three = [numbers(6, 5) for _ in range(3)]
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    actual += [
        ("TripletMarginLoss", {}, three, []),
        ("TripletMarginLoss", {"margin": 3.0, "p": 1.0, "reduction": "sum"}, three, []),
        ("TripletMarginLoss", {"margin": 2.0, "p": 3.0}, three, []),
        ("TripletMarginLoss", {"swap": True}, three, []),
        ("BatchHardTripletLoss", {}, three[:1], [labels]),
        ("BatchHardTripletLoss", {"margin": 5.0, "reduction": "sum"}, three[:1], [labels]),
        ("InfoNCELoss", {}, three[:2], []),
        ("InfoNCELoss", {"symmetric": False, "temperature": 0.5}, three[:2], []),
        ("InfoNCELoss", {"normalize": False, "reduction": "sum"}, three[:2], []),
    ]
    steps = numbers(8, 3, 5, scale=2)
    words = torch.tensor([[1, 2, 2, 4], [3, 3, -1, -1], [4, -1, -1, -1]])
    inputs, lengths = torch.tensor([8, 6, 3]), torch.tensor([4, 2, 0])
    high = torch.tensor([[1, 2, 2, 0], [3, 3, 0, 0], [0, 1, 0, 0]])
    short = torch.tensor([8, 2, 3])
    ways: list[dict[str, Any]] = [{}, {"reduction": "sum"}, {"blank": 4}, {"zero_infinity": True}]
    for options in ways:
        labels = high if "blank" in options else words
        times = short if "zero_infinity" in options else inputs
        chosen = {"logits": True, **options}
        actual.append(("CTCLoss", chosen, [steps], [labels, times, lengths]))
    turned = [steps.transpose(0, 1).contiguous()]
    options = {"logits": True, "batch_first": True}
    actual.append(("CTCLoss", options, turned, [words, inputs, lengths]))
    shares, spread = (torch.rand(*shape, dtype=torch.float64) for shape in ((4, 3), (2, 4, 3)))
    shares, spread = ((s / s.sum(1, keepdim=True)).round(decimals=3) for s in (shares, spread))
    several: list[dict[str, Any]] = [
        {}, {"reduction": "sum"}, {"label_smoothing": 0.1}, {"weight": [0.5, 2.0, 1.0]},
        {"weight": [0.5, 2.0, 1.0], "label_smoothing": 0.2},
    ]  # fmt: skip
    for options in several:
        actual.append(("CrossEntropyLoss", {"probabilities": True, **options}, [x], [shares]))
    actual.append(("CrossEntropyLoss", {"probabilities": True}, [scores], [spread]))
    actual.append(
        ("CrossEntropyLoss", {"weight": [0.5, 2.0, 1.0]}, [x], [torch.tensor([0, 1, 2, 1])])
    )
    return actual


def main() -> None:
    """Write the values and the gradients of all rows."""
    torch.manual_seed(0)
    cases = []
    for name, options, inputs, targets in list_rows():
        leaves = [x.clone().requires_grad_() for x in inputs]
        value = LOSSES[name](*leaves, *targets, **options)
        value.backward()
        cases.append(
            {
                "loss": name,
                "options": options,
                "inputs": [x.tolist() for x in inputs],
                "targets": [t.tolist() for t in targets],
                "value": value.item(),
                "gradients": [x.grad.round(decimals=12).tolist() for x in leaves],
            }
        )
    source = f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, float64"
    lines = ",\n".join(json.dumps(case) for case in cases)
    VALUES.write_text(f'{{"source": "{source}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
