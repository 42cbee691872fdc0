"""Recipes of docs/from-pytorch.md, each run and compared with PyTorch.

Needs torch, torchvision, timm, transformers and onnxruntime beside edgegrad.  A recipe is the
snippet under a heading of the page; it leaves a `module`, a `trainer`, a `batch` and the `losses`
of five steps.  Of these are compared

    losses      of the five steps with torch's AdamW on the same batch
    inference   the outputs of the exported inference model, by onnxruntime, with the outputs of the
                module that the weights went back into, relative to the largest if that is above 1

`--page` writes the rows into the page.  Differences above `TOLERANCE` are WRONG.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import engine.artifacts  # noqa: F401  # the snippets find it, when this folder is off the path
from bench.measuring import ROOT
from bench.rows import WRONG, Bench, Cells
from engine.base.aliases import Array

PAGE = ROOT / "docs/from-pytorch.md"
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Recipe:
    """Snippet of the page under its heading."""

    title: str
    code: str


def list_recipes(page: str) -> Iterator[Recipe]:
    """Yield the recipes of the page, in order."""
    for section in page.split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        yield Recipe(title, rest.partition("```python\n")[2].partition("```")[0])


# --- torch's side: the loss of a module for a batch, which is its features by name and its targets


def compute_own_loss(net: Any, features: Mapping[str, Any], labels: Any) -> Any:
    """Return the loss that a model of transformers computes."""
    return net(**features, labels=labels).loss


def of_output(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss that is a function of a module's output and the targets."""
    return lambda net, features, *targets: compute(net(**features), *targets)


def make_cross_entropy(**options: Any) -> Callable[..., Any]:
    def compute_loss(output: Any, labels: Any) -> Any:
        from torch.nn import functional

        return functional.cross_entropy(output, labels, **options)

    return of_output(compute_loss)


def compute_detector_loss(output: Any, classes: Any, places: Any, objects: Any) -> Any:
    from torchvision.ops import box_convert, complete_box_iou_loss, sigmoid_focal_loss

    focal = sigmoid_focal_loss(output["scores"], classes.float(), 0.25, 2.0, "mean")
    pair = [box_convert(b, "cxcywh", "xyxy") for b in (output["boxes"], places)]
    each = complete_box_iou_loss(*pair, reduction="none")
    return focal + (each * objects).sum() / objects.sum()


def compute_ctc_loss(output: Any, words: Any, steps: Any, lengths: Any) -> Any:
    from torch.nn import functional

    logs = functional.log_softmax(output, -1).transpose(0, 1)
    return functional.ctc_loss(logs, words, steps, lengths)


def compute_contrast_loss(output: Any) -> Any:
    import torch
    from torch.nn import functional

    a, b = (functional.normalize(output[n]) for n in ("image_embeds", "text_embeds"))
    scores, labels = a @ b.T / 0.07, torch.arange(len(a))
    return sum(functional.cross_entropy(s, labels) for s in (scores, scores.T)) / 2


def compute_dice_loss(output: Any, masks: Any) -> Any:
    import torch
    from torch.nn import functional

    kept = (masks != 255)[:, None]
    truth = functional.one_hot(torch.where(masks == 255, 0, masks), 3).movedim(-1, 1) * kept
    p = torch.softmax(output, 1) * kept
    common, both = (p * truth).sum((2, 3)), (p + truth).sum((2, 3))
    return (1 - (2 * common + 1) / (both + 1)).mean()


LOSSES: dict[str, Callable[..., Any]] = {
    "Text classification with transformers": compute_own_loss,
    "A causal language model with transformers": compute_own_loss,
    "MobileNetV3 of timm, all layers": make_cross_entropy(label_smoothing=0.1),
    "ResNet-18 of torchvision, its head alone": make_cross_entropy(),
    "A detector in the style of ultralytics": of_output(compute_detector_loss),
    "Speech with CTC": of_output(compute_ctc_loss),
    "Two towers, like CLIP": of_output(compute_contrast_loss),
    "Segmentation with Dice": of_output(compute_dice_loss),
}


# --- comparison


@dataclass(frozen=True)
class Result:
    """Difference of a recipe from torch."""

    title: str
    parameters: int
    losses: float
    inference: float

    @property
    def is_good(self) -> bool:
        return self.losses <= TOLERANCE and self.inference <= TOLERANCE

    @property
    def cells(self) -> Cells:
        """The cells of the row."""
        verdict = None if self.is_good else WRONG
        return self.parameters, self.losses, self.inference, verdict


MARK = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def run(recipe: Recipe) -> Result:
    """Run a recipe, and compare what it gives with torch."""
    room: dict[str, Any] = {"__name__": "recipe"}
    exec(recipe.code, room)
    module, trainer, given = room["module"], room["trainer"], room["batch"]
    batch = [*given.values()] if isinstance(given, Mapping) else given
    features = dict(zip(trainer.features, batch, strict=False))
    theirs = run_torch_steps(module, LOSSES[recipe.title], features, batch[len(features) :])
    trainer.to_torch(module)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "inference.onnx")
        trainer.export(path)
        arrays = {name: np.asarray(value) for name, value in features.items()}
        outputs = run_elsewhere(path, arrays, trainer.outputs)
    expected = compute_outputs(module, features, trainer.outputs)
    return Result(
        recipe.title,
        sum(p.data.size for _, p in trainer.state.parameters if p.requires_grad),
        float(np.abs(np.subtract(room["losses"], theirs)).max()),
        max(measure_relative(a, b) for a, b in zip(outputs, expected, strict=True)),
    )


def run_torch_steps(
    module: Any,
    loss_of: Callable[..., Any],
    features: Mapping[str, Any],
    targets: Sequence[Any],
) -> list[float]:
    """Return the losses of five steps of torch's AdamW on a copy of the module."""
    import torch

    net = copy.deepcopy(module)
    if not net.training:
        net.train()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(net, features, *targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compute_outputs(module: Any, features: Mapping[str, Any], names: Sequence[str]) -> list[Array]:
    """Return outputs of the module in evaluation mode, by their names in the exported model."""
    import torch

    with torch.no_grad():
        outputs = module.eval()(**features)
    if isinstance(outputs, torch.Tensor):
        return [outputs.numpy()]
    return [outputs[name].numpy() for name in names]


def run_elsewhere(path: str, features: dict[str, Array], outputs: list[str]) -> list[Array]:
    """Return the outputs of a model by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(outputs, features)]


def measure_relative(found: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest value if that is above 1."""
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(found - expected).max()) / scale


def list_subjects() -> Mapping[str, Recipe]:
    """Return the recipes of the page by title."""
    return {recipe.title: recipe for recipe in list_recipes(PAGE.read_text("utf-8"))}


def measure(recipe: Recipe, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a recipe.

    In this folder transformers would find `kernels` for a package of that name: it is off the path.
    """
    path = [p for p in sys.path if Path(p or ".").resolve() != ROOT]
    with warnings.catch_warnings(), mock.patch.object(sys, "path", path):
        warnings.simplefilter("ignore")
        yield run(recipe).cells


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Put rows into the table of the page; others stay."""
    page = path.read_text("utf-8")
    known = MARK.search(page)
    assert known is not None
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in known[0].splitlines()[1:-1]}
    for title, cells in found.items():
        for parameters, losses, inference, _ in cells:
            rows[title] = f"| {title} | {parameters:,} | {losses:.0e} | {inference:.0e} |"
    table = "".join(f"{line}\n" for line in rows.values())
    path.write_text(MARK.sub(lambda m: m[1] + table + m[2], page), "utf-8")


BENCHES = (
    Bench(
        "recipes",
        "the recipes of docs/from-pytorch.md against PyTorch",
        list_subjects,
        ("trained parameters:,", "losses:.0e", "inference:.0e", "verdict"),
        measure,
        page=write_page,
        document="docs/from-pytorch.md",
    ),
)
