"""PyTorch's side of the comparison: exported models, and the results of their first steps.

Needs torch, torchvision, timm and transformers, and nothing of the engine.  For each tag,
`<family>-<export>`, `main` writes FOLDER/<tag>.onnx and FOLDER/<tag>.npz, then FOLDER/<tag>.json,
which is why there is no model or null, and then the tag to standard output.  The archive holds the
inputs `in<i>`, the `target`, if the model does not end in its loss, the losses of three AdamW
steps, the gradients of the first, `grad.<name>`, and its `logits`; `names` are the initializers to
train, `lost` the parameters that the exporter has folded into something else.

Dropout is 0 everywhere, and a family that draws random numbers in its steps is refused, as nobody
else can draw the same.  Weights are random, with seed 0.  Models that are chaotic in float32 are
exported in float64: those whose own results in PyTorch differ between both by more than a tenth of
the tolerance of `bench.families`.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional

from bench.families.models import FAMILIES
from bench.families.models.family import Made
from engine.tools.dev.exports import Export, split_tag

CHAOS = 1e-5  # of losses, and a hundred times as much of gradients


def export(net: nn.Module, inputs: Any, path: Path, how: Export) -> None:
    names = [f"in{i}" for i in range(len(inputs))]
    common: dict[str, Any] = {
        "opset_version": how.opset, "input_names": names, "output_names": ["logits"]
    }  # fmt: skip
    if how.exporter == "new":
        program = torch.onnx.export(net, inputs, dynamo=True, optimize=how.folds, **common)
        program.save(path, external_data=False)
        return
    rows = len(inputs[0])
    dynamic = {
        n: {0: "batch" if len(x) == rows else f"rows_of_{n}"}
        for n, x in zip(names, inputs, strict=True)
    }
    mode = torch.onnx.TrainingMode.PRESERVE  # EVAL would fold normalisations into convolutions
    torch.onnx.export(
        net, inputs, path, dynamo=False, do_constant_folding=how.folds, training=mode,
        dynamic_axes=dynamic, **common,
    )  # fmt: skip


def compute_loss(output: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
    """Return the cross-entropy of classes, the mean square of numbers, or the model's own loss."""
    if target is None:
        return output.reshape(())
    if target.is_floating_point():
        return functional.mse_loss(output, target)
    return functional.cross_entropy(output, target)


def run_steps(net: nn.Module, inputs: Any, target: torch.Tensor | None) -> dict[str, Any]:
    """Return the results of three AdamW steps: losses, and the output and gradients of the
    first.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.0)
    results: dict[str, Any] = {}
    losses: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        output = net(*inputs)
        loss = compute_loss(output, target)
        loss.backward()
        if not losses:
            results["logits"] = output.detach().numpy().copy()
            for name, p in net.named_parameters(remove_duplicate=False):
                if p.requires_grad and p.grad is not None:
                    results[f"grad.{name}"] = p.grad.numpy().copy()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {**results, "losses": losses}


def is_chaotic(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Return whether PyTorch's own results in float32 and float64 are too far apart."""
    if not np.allclose(a["losses"], b["losses"], rtol=0, atol=CHAOS):
        return True
    names = [n for n in a if n.startswith("grad.")]
    scale = max(float(np.abs(b[n]).max(initial=0)) for n in names)
    return any(
        float(np.abs(a[n] - b[n]).max(initial=0))
        > 100 * CHAOS * (float(np.abs(b[n]).max(initial=0)) + 1e-3 * scale)
        for n in names
    )


def convert_to_double(x: torch.Tensor | None) -> Any:
    return x.double() if x is not None and x.is_floating_point() else x


def convert_made(made: Made) -> Made:
    net, inputs, target = made
    return (
        copy.deepcopy(net).double(),
        tuple(map(convert_to_double, inputs)),
        convert_to_double(target),
    )


def make(family: str, how: Export) -> tuple[Made, dict[str, Any]]:
    """Return the model to export and what its steps give; in float64 where float32 is too coarse.

    Raises:
        ValueError: its steps draw random numbers.
    """
    torch.manual_seed(0)
    net, inputs, target = FAMILIES[family].make()
    for p in net.parameters():  # the old exporter merges parameters that are equal
        p.data += 0.02 * torch.randn_like(p)
    net.train(how.trains)
    made = (net, inputs, target)
    before = torch.get_rng_state()
    results = run_steps(copy.deepcopy(net), inputs, target)
    if not torch.equal(before, torch.get_rng_state()):
        raise ValueError(f"{family} draws random numbers in {how.tag}: is a dropout not 0?")
    try:
        wide = convert_made(made)
        exact = run_steps(copy.deepcopy(wide[0]), *wide[1:])
    except (RuntimeError, TypeError, ValueError):  # library code that names float32 in its body
        return made, results
    return (wide, exact) if is_chaotic(results, exact) else (made, results)


def to_train(path: Path, net: nn.Module, gradients: set[str]) -> tuple[list[str], list[str]]:
    """Return the initializers that are the parameters of `net`, and the lost parameters.

    An exporter that folds transposes a weight, or joins several, and gives that another name: it is
    known by its values, which are all parameters' values.
    """
    values = {
        n: p.detach().numpy().ravel()
        for n, p in net.named_parameters(remove_duplicate=False)
        if n in gradients
    }
    held = {i.name: i for i in onnx.load(path).graph.initializer}
    names = [n for n in values if n in held]
    lost = {n: value for n, value in values.items() if n not in held}
    sought = np.concatenate([*lost.values(), np.empty(0)])
    seen = [np.empty(0)]
    for name in held.keys() - values.keys():
        value = onnx.numpy_helper.to_array(held[name]).ravel()
        if value.size and np.isin(value, sought).all():
            names.append(name)
            seen.append(value)
    seen_values = np.concatenate(seen)
    gone = [n for n, value in lost.items() if not np.isin(value, seen_values).all()]
    buffers = [b.detach().numpy().ravel() for b in net.buffers()]
    return names, sorted(gone) + _list_computed(held, names, buffers)


def _list_computed(held: dict[str, Any], names: list[str], buffers: list[Any]) -> list[str]:
    """Return the constants that an exporter may have computed of parameters, or stored a second
    time.
    """
    kept = np.concatenate([*(b for b in buffers if b.dtype.kind == "f"), np.empty(0)])
    arrays = {n: onnx.numpy_helper.to_array(i).ravel() for n, i in held.items()}
    trained = np.concatenate([*(arrays[n] for n in names), np.empty(0)])
    values, counts = np.unique(trained, return_counts=True)
    twice = values[counts > 1]
    out = [n for n in names if arrays[n].size > 1 and np.isin(arrays[n], twice).all()]
    rest = [n for n in held.keys() - set(names) if n.startswith("onnx::")]
    rest = [n for n in rest if arrays[n].dtype.kind == "f" and arrays[n].size > 1]
    return out + sorted(n for n in rest if not np.isin(arrays[n], kept).all())


def list_computed(path: Path, net: nn.Module, inputs: Any, how: Export) -> list[str]:
    """Return the float constants of an export that are others if the parameters are, and are
    none.
    """
    other = copy.deepcopy(net)
    for p in other.parameters():
        p.data = 0.9 * p.data
    again = path.with_suffix(".again.onnx")
    export(other, inputs, again, how)
    pairs = [
        {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(file).graph.initializer}
        for file in (path, again)
    ]
    again.unlink()
    parameters = {n for n, _ in net.named_parameters(remove_duplicate=False)}
    return sorted(
        n
        for n, a in pairs[0].items()
        if n not in parameters
        and a.dtype.kind == "f"
        and not np.array_equal(a, pairs[1].get(n, np.empty(0)))
    )


def write(tag: str, folder: Path) -> str | None:
    """Export one model and run its steps; why the exporter does not do it, or None."""
    family, how = split_tag(tag)
    (net, inputs, target), results = make(family, how)
    path = folder / f"{tag}.onnx"
    try:
        export(copy.deepcopy(net), inputs, path, how)
    except Exception as raised:  # whatever the exporter raises, there is nothing to compare
        error: BaseException = raised
        path.unlink(missing_ok=True)
        while error.__cause__ is not None:
            error = error.__cause__
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        first = lines[0].partition("  [Caused by")[0] if lines else ""  # then paths and addresses
        return f"{type(error).__name__}: {first}"[:200]
    gradients = {n.removeprefix("grad.") for n in results if n.startswith("grad.")}
    names, lost = to_train(path, net, gradients)
    if how.exporter == "new" and how.folds:
        lost += [n for n in list_computed(path, net, inputs, how) if n not in names]
    data = {f"in{i}": x.numpy() for i, x in enumerate(inputs)}
    if target is not None:
        data["target"] = target.numpy()
    np.savez(folder / f"{tag}.npz", names=names, lost=lost, **data, **results)
    return None


def main(arguments: list[str]) -> None:
    """List the families with their sources, or write those that are named."""
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output of libraries is not part of the report
    if arguments == ["--list"]:
        json.dump({name: f.source for name, f in FAMILIES.items()}, reports)
        return
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder, *tags = arguments
    for tag in tags:
        reason = write(tag, Path(folder))
        (Path(folder) / f"{tag}.json").write_text(json.dumps(reason))
        print(tag, file=reports, flush=True)
