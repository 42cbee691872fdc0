"""Runs the recipes of docs/from-pytorch.md, and compares each with PyTorch.

    python -m bench.recipes [--page] [WORD ...]

Needs torch, torchvision, timm, transformers and onnxruntime beside edgegrad.  WORD chooses recipes
by a part of their title.  A recipe is the snippet under a heading of the page; it leaves a
`module`, a `trainer`, a `batch` and the `losses` of five steps.  Of these are compared

    losses      of the five steps with those of torch's AdamW on the same batch
    inference   the outputs of the exported inference model, by onnxruntime, with those of the
                module that the weights went back into, relative to the largest if that is above 1

`--page` writes the table into the page.  The exit status is 1 where something is farther off than
`TOLERANCE`.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import engine.artifacts  # noqa: F401  # the snippets find it, when this folder is off the path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/from-pytorch.md"
TOLERANCE = 1e-3
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Recipe:
    """A snippet of the page under its heading."""

    title: str
    code: str


def recipes(page: str) -> Iterator[Recipe]:
    """The recipes of the page, in order."""
    for section in page.split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        yield Recipe(title, rest.partition("```python\n")[2].partition("```")[0])


# --- torch's side: the loss of a module's output and the targets


def cross_entropy(**options: Any) -> Callable[..., Any]:
    def loss(output: Any, labels: Any) -> Any:
        from torch.nn import functional

        return functional.cross_entropy(getattr(output, "logits", output), labels, **options)

    return loss


def detector(output: Any, classes: Any, places: Any, objects: Any) -> Any:
    from torchvision.ops import box_convert, complete_box_iou_loss, sigmoid_focal_loss

    focal = sigmoid_focal_loss(output["scores"], classes.float(), 0.25, 2.0, "mean")
    pair = [box_convert(b, "cxcywh", "xyxy") for b in (output["boxes"], places)]
    each = complete_box_iou_loss(*pair, reduction="none")
    return focal + (each * objects).sum() / objects.sum()


def ctc(output: Any, words: Any, steps: Any, lengths: Any) -> Any:
    from torch.nn import functional

    logs = functional.log_softmax(output, -1).transpose(0, 1)
    return functional.ctc_loss(logs, words, steps, lengths)


def contrast(output: Any) -> Any:
    import torch
    from torch.nn import functional

    a, b = (functional.normalize(output[n]) for n in ("image_embeds", "text_embeds"))
    scores, labels = a @ b.T / 0.07, torch.arange(len(a))
    return sum(functional.cross_entropy(s, labels) for s in (scores, scores.T)) / 2


def dice(output: Any, masks: Any) -> Any:
    import torch
    from torch.nn import functional

    kept = (masks != 255)[:, None]
    truth = functional.one_hot(torch.where(masks == 255, 0, masks), 3).movedim(-1, 1) * kept
    p = torch.softmax(output, 1) * kept
    common, both = (p * truth).sum((2, 3)), (p + truth).sum((2, 3))
    return (1 - (2 * common + 1) / (both + 1)).mean()


LOSSES: dict[str, Callable[..., Any]] = {
    "Text classification with transformers": cross_entropy(),
    "A causal language model with transformers": cross_entropy(ignore_index=-100),
    "MobileNetV3 of timm, all layers": cross_entropy(label_smoothing=0.1),
    "ResNet-18 of torchvision, its head alone": cross_entropy(),
    "A detector in the style of ultralytics": detector,
    "Speech with CTC": ctc,
    "Two towers, like CLIP": contrast,
    "Segmentation with Dice": dice,
}


# --- comparison


@dataclass(frozen=True)
class Result:
    """How far a recipe is from torch."""

    title: str
    parameters: int
    losses: float
    inference: float

    @property
    def is_good(self) -> bool:
        return self.losses <= TOLERANCE and self.inference <= TOLERANCE

    def row(self) -> str:
        """The row of the table."""
        return f"| {self.title} | {self.parameters:,} | {self.losses:.0e} | {self.inference:.0e} |"


HEAD = "| recipe | trained parameters | losses | inference |\n|---|---|---|---|\n"
MARK = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def run(recipe: Recipe) -> Result:
    """Run a recipe, and compare what it gives with torch."""
    room: dict[str, Any] = {"__name__": "recipe"}
    exec(recipe.code, room)
    module, trainer, batch = room["module"], room["trainer"], room["batch"]
    count = len(trainer.features)
    theirs = torch_steps(module, LOSSES[recipe.title], batch[:count], batch[count:])
    trainer.to_torch(module)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "inference.onnx")
        trainer.export(path)
        found = elsewhere(path, dict(zip(trainer.features, batch, strict=False)), trainer.outputs)
    expected = outputs_of(module, batch[:count])
    return Result(
        recipe.title,
        sum(p.data.size for _, p in trainer.state.parameters if p.requires_grad),
        float(np.abs(np.subtract(room["losses"], theirs)).max()),
        max(relative(a, b) for a, b in zip(found, expected, strict=True)),
    )


def torch_steps(
    module: Any, loss_of: Callable[..., Any], features: Any, targets: Any
) -> list[float]:
    """The losses of five steps of torch's AdamW on a copy of the module."""
    import torch

    net = copy.deepcopy(module)
    if not net.training:
        net.train()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    inputs, truth = ([torch.from_numpy(np.array(x)) for x in part] for part in (features, targets))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(net(*inputs), *truth)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def outputs_of(module: Any, features: Any) -> list[Array]:
    """What the module returns in evaluation mode."""
    import torch

    with torch.no_grad():
        found = module.eval()(*(torch.from_numpy(np.array(x)) for x in features))
    if isinstance(found, torch.Tensor):
        return [found.numpy()]
    return [x.numpy() for x in found.values()]


def elsewhere(path: str, features: dict[str, Array], outputs: list[str]) -> list[Array]:
    """What onnxruntime gives for a model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(outputs, features)]


def relative(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest value if that is above 1."""
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(found - expected).max()) / scale


def main(arguments: list[str]) -> int:
    """Run recipes, print their table, and write it if that is asked for."""
    parser = argparse.ArgumentParser(
        prog="bench.recipes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of titles")
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    given = parser.parse_args(arguments)
    if given.page and given.words:
        parser.error("the table of the page has all recipes")
    page = PAGE.read_text("utf-8")
    chosen = [
        recipe
        for recipe in recipes(page)
        if not given.words or any(w.lower() in recipe.title.lower() for w in given.words)
    ]
    results = []
    print(HEAD, end="")
    for recipe in chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(run(recipe))
        print(results[-1].row(), flush=True)
    if given.page:
        table = HEAD + "".join(f"{result.row()}\n" for result in results)
        PAGE.write_text(MARK.sub(lambda m: m[1] + table + m[2], page), "utf-8")
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    # In this folder transformers would find `kernels` for a package of that name, so that it is
    # taken off the path when the engine has been found in it.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT]
    sys.exit(main(sys.argv[1:]))
