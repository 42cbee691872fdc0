"""Rewritten models: a check that they train like the original ones.

    python -m bench.families --rewritten [--page] [REWRITING ...]

Rewrites recorded models in every way of `rewrites.REWRITINGS`; needs onnxslim and onnxsim, and no
PyTorch.  If the rewriter has not changed any parameter, three losses, the gradients and the export
are compared, otherwise the first loss and the export.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from bench.families.recorded import DATA
from bench.families.rewrites import REWRITINGS, Rewriting, walk
from bench.families.train import Comparison, compare_as_it_is
from bench.tables import make_markdown
from engine.base.aliases import Array
from engine.tools.dev.export_artifacts import cut_first_line

Survivors = dict[str, tuple[str, str]]  # by its name now: what it was called, and its order
FOLDED = "the rewriter folded a parameter"


def find_survivors(
    model: onnx.ModelProto, rewritten: onnx.ModelProto, names: list[str]
) -> Survivors:
    """Find the parameters of a model among the initializers of a rewritten one.

    A parameter is recognised by its values: in their order, whatever its new name and shape, or in
    the order of its transpose, or, if its gradient does not depend on it, in any order.
    """
    held = {i.name: onnx.numpy_helper.to_array(i) for i in rewritten.graph.initializer}
    floats = {n: a for n, a in held.items() if a.dtype.kind == "f"}
    matches: Survivors = {}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            continue
        value = onnx.numpy_helper.to_array(tensor)
        own = {tensor.name: floats[tensor.name]} if tensor.name in floats else floats
        for name, other in own.items():
            if other.size != value.size or name in matches:
                continue
            if np.array_equal(other.ravel(), value.ravel()):
                matches[name] = tensor.name, "same"
            elif value.ndim == 2 and np.array_equal(other.ravel(), value.T.ravel()):
                matches[name] = tensor.name, "transposed"
            elif value.size > 1 and np.array_equal(np.sort(other, None), np.sort(value, None)):
                matches[name] = tensor.name, "mixed"
            else:
                continue
            break
    return matches


def has_computed(model: onnx.ModelProto, rewritten: onnx.ModelProto, kept: Survivors) -> bool:
    """Say whether a rewritten model has float constants that the model has not.

    A rewriter has then computed them ahead, or copied them, perhaps of a parameter that it has
    left as well.
    """
    parameters = {old for old, _ in kept.values()}
    tensors = [t for t in model.graph.initializer if t.name not in parameters]
    for graph in walk(model.graph):
        tensors += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    known = [np.sort(onnx.numpy_helper.to_array(t), None) for t in tensors]
    values = {i.name: onnx.numpy_helper.to_array(i) for i in rewritten.graph.initializer}
    return any(
        a.dtype.kind == "f"
        and a.size > 1
        and not any(np.array_equal(np.sort(a, None), k) for k in known)
        for name, a in values.items()
        if name not in kept
    )


def compare_rewritten(tag: str, rewriting: Rewriting, folder: Path) -> Comparison:
    """Rewrite, train and export one recorded model; files are written to `folder`."""
    with np.load(DATA / f"{tag}.npz") as file:
        data: dict[str, Array] = dict(file)
    model = onnx.load(DATA / f"{tag}.onnx")
    try:
        rewritten = rewriting.rewrite(model)
    except Exception as error:  # whatever a rewriter raises, there is nothing to compare
        if rewriting.is_ours:
            raise
        return Comparison(fault=f"rewriter: {cut_first_line(error)}", is_ours=False)
    kept = find_survivors(model, rewritten, data["names"].tolist())
    if not kept:
        return Comparison(fault=FOLDED, is_ours=False)
    path = folder / f"{tag}.onnx"
    onnx.save(rewritten, path)
    is_whole = len(kept) == len(data["names"]) and not has_computed(model, rewritten, kept)
    comparison = compare_as_it_is(
        path, name_expected(data, rewritten, kept, is_whole=is_whole), folder
    )
    if not comparison.fault and not is_whole:
        comparison.fault, comparison.is_ours = FOLDED, False
    if comparison.fault.startswith("exporter"):
        comparison.fault = "rewriter" + comparison.fault.removeprefix("exporter")
    return comparison


def name_expected(
    data: dict[str, Array], rewritten: onnx.ModelProto, kept: Survivors, *, is_whole: bool
) -> dict[str, Array]:
    """Return what PyTorch's steps gave, by the names of the rewritten model.

    Of a model that is not whole the first loss is left, and the gradients of its parameters are
    left out: another may have a part of them.
    """
    shapes = {i.name: tuple(i.dims) for i in rewritten.graph.initializer}
    out = {n: a for n, a in data.items() if not n.startswith("grad.")}
    for name, (old, order) in kept.items():
        if is_whole and order != "mixed" and f"grad.{old}" in data:
            gradient = data[f"grad.{old}"]
            gradient = gradient.T if order == "transposed" else gradient
            out[f"grad.{name}"] = gradient.reshape(shapes[name])
    return out | {
        "names": np.array(list(kept)), "losses": data["losses"][: None if is_whole else 1]
    }  # fmt: skip


@dataclass(slots=True)
class Row:
    """Results of one rewriting."""

    found: list[Comparison] = field(default_factory=list)

    @property
    def refused(self) -> list[str]:
        """Reasons why the engine refused models."""
        return [c.fault for c in self.found if c.fails and c.fault.startswith("UnsupportedOp")]

    @property
    def wrong(self) -> int:
        """Number of models that are neither right nor refused, by the engine's fault."""
        return sum(c.fails for c in self.found) - len(self.refused)

    @property
    def faults(self) -> str:
        """Faults of the models that differ, except folded ones."""
        return "; ".join(c.fault for c in self.found if c.fault and c.fault != FOLDED)

    @property
    def cells(self) -> list[int | str]:
        """The cells of the row, under `COLUMNS`."""
        counts = [
            len(self.found),
            sum(not c.fault for c in self.found),
            sum(c.fault == FOLDED for c in self.found),
            len(self.refused),
            sum(not c.is_ours and c.fault != FOLDED for c in self.found),
            self.wrong,
        ]
        ops = Counter(op for fault in self.refused for op in re.findall(r"[\w.]+::\w+", fault)[:1])
        return [*counts, ", ".join(f"{op} ({n})" for op, n in ops.most_common())]


COLUMNS = ("models", "alike", "folded", "refused", "rewriter fails", "wrong", "refused are")
TAGS = (  # small, and of every area
    "bert-old-14-train",
    "conditional_random_field-new-18-train",
    "conv_lstm-old-14-train",
    "coupling_flow-old-17-eval-folded",
    "graph_attention-new-18-train",
    "graph_maximum-old-17-eval-folded",
    "lstm_tagger-old-17-eval-folded",
    "mixture_of_experts-old-14-train",
    "tab_net-old-14-train",
    "unet-old-14-train",
    "unet3d-old-17-eval-folded",
    "yolo_head-old-14-train",
)
INTRODUCTION = """\
## Rewritten models

Models recorded for the tests, after other tools have rewritten them; made by
`python -m bench families.rewritten --page`, which needs onnxslim and onnxsim, but not PyTorch.
Models are `alike` if all three losses, all gradients and the export agree with PyTorch's as
above. They are `folded` if the rewriter has computed a parameter ahead, or laid it out for
one machine: their first loss agrees, and less is trained. A `rewriter fails` if it raises,
or if onnxruntime finds its model invalid or different. Every refusal names its cause.
"""


def compare_all(name: str) -> Row:
    """Compare the models of `TAGS` in a rewriting."""
    row = Row()
    for tag in TAGS:
        with tempfile.TemporaryDirectory() as folder:
            row.found.append(compare_rewritten(tag, REWRITINGS[name], Path(folder)))
    return row


def make_section(rows: dict[str, list[str]], kept: str) -> str:
    """Return the section of the page, of cells; rewritings that were not tried keep their rows."""
    titles = {rewriting.title: name for name, rewriting in REWRITINGS.items()}
    lines = {
        titles.get(line.split(" | ")[0].removeprefix("| "), ""): line for line in kept.splitlines()
    }
    lines |= {n: f"| {' | '.join([REWRITINGS[n].title, *row])} |" for n, row in rows.items()}
    head = make_markdown(["rewritten by", *COLUMNS], [])
    return "\n".join([INTRODUCTION, *head, *(lines[n] for n in REWRITINGS if n in lines), ""])
