"""Proximal term of FedProx: every gradient also pulls its parameter back to its anchor.

    Before   inputs w; ...; dw = Gemm(dy, x); InPlaceAccumulatorV2(buffer, dw, reset)
    After    inputs w, w.anchor, proximal_mu; ...; dw = Gemm(dy, x);
             far = Sub(w, w.anchor); pull = Mul(far, proximal_mu); held = Add(dw, pull);
             InPlaceAccumulatorV2(buffer, held, reset)

These are nodes of ONNX, so onnxruntime-training and trimmed builds can run them.  The planner makes
one elementwise kernel of the three, which overwrites dw.  The evaluation model has the inputs too,
unread, since onnxruntime-training feeds all parameters to both.  Two other forms were weighed.

* * The term as part of the loss.  Its gradient is the same, but the loss of a step then includes
the term, and every parameter is read and summed once more: a step of the MLP takes 19 % longer than
without the term instead of 6 %, a step of MiniLM 3.9 % instead of 2.8 %.  * An optimizer op that
reads the anchor.  It saves a pass over the gradient, but the optimizer models would run nowhere
else, and each optimizer would need such a variant.

engine/training/proximal.py has the formula, its source, and what sets the anchors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ONNX_CODE
from engine.base.errors import InputError
from engine.base.proximal import ANCHOR, MU
from engine.graphs.ir.graph import Graph, Names, Node


def make_anchors(trainable: Mapping[str, Array]) -> dict[str, Array]:
    """Return the parameters that the term adds to a checkpoint: the anchors, and mu = 0.

    trainable: the trained parameters.  If they are of several element types, mu has the widest.

    Raises:
        InputError: nothing is trained.
    """
    if not trainable:
        raise InputError("proximal=True: nothing is trained; give requires_grad")
    mu = np.zeros((), np.result_type(*trainable.values()))
    return {**{name + ANCHOR: a.copy() for name, a in trainable.items()}, MU: mu}


def hold(graph: Graph, names: Sequence[str], gradients: Mapping[str, str]) -> dict[str, str]:
    """Append the pull to the anchors; return the new gradients by parameter.

    names: the trained parameters.  gradients: their gradients.

    *Requires* that mu and the anchors are inputs of the graph.
    """
    fresh = Names(graph).take_fresh
    held, mus = dict(gradients), {graph.inputs[MU].dtype: MU}
    for name in names:
        anchor, kind = name + ANCHOR, graph.inputs[name].dtype
        if kind not in mus:
            mus[kind] = fresh(f"{MU}_{kind}")
            to = {"to": ONNX_CODE[kind]}
            graph.nodes.append(Node("Cast", (MU,), (mus[kind],), to, "", fresh(f"{MU}/Cast")))
        far, pull, held[name] = (fresh(f"{name}_{what}") for what in ("far", "pull", "held_grad"))
        for op, inputs, made in (
            ("Sub", (name, anchor), far),
            ("Mul", (far, mus[kind]), pull),
            ("Add", (gradients[name], pull), held[name]),
        ):
            graph.nodes.append(Node(op, inputs, (made,), {}, "", fresh(f"{name}/Proximal{op}")))
    return held
