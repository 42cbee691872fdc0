"""Activations inside products, as onnxruntime's optimisers write them into FusedConv and FusedGemm.

Forward   Y = act(product), or act(product + Z) where FusedConv has a sum Z as input 3
Backward  through the expansion into the product, Add and the activation
Source    onnxruntime's contrib operators FusedConv-1 and FusedGemm-1

FusedConv lists the parameters of its activation as `activation_params`, in the order below;
FusedGemm has `activation_<parameter>`.  Planning fuses again what has an epilogue here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.kernels.vocabulary.kernel import HARD_SWISH, RELU, SIX
from engine.kernels.vocabulary.op import Nodes, Site

# Each activation, an op of ONNX, with its parameters: attributes, or inputs of Clip.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
IN_CONV = tuple(ACTIVATIONS)
IN_GEMM = tuple(name for name in ACTIVATIONS if name != "Clip")  # whose bounds it has no place for
# Those that kernels of convolutions apply, as bits of their modes; Clip between 0 and 6.
CURVES = {"Relu": RELU, "Clip": RELU | SIX, "HardSwish": HARD_SWISH}
BOUNDS = (0.0, 6.0)  # of that Clip
_PREFIX = "activation_"


def list_plain_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the product alone."""
    return {k: v for k, v in attrs.items() if not k.startswith("activation")}


def read_parameters(site: Site) -> dict[str, float]:
    """Return the parameters that a node gives its activation; ONNX has a default for the others.

    Raises:
        UnsupportedOpError: the activation is unknown, or has another number of parameters.
    """
    attrs, name = site.attrs, site.attrs["activation"]
    if not name:
        return {}
    allowed = IN_GEMM if site.op == "FusedGemm" else IN_CONV
    if name not in allowed:
        site.fail(f"activation is {name!r}", ", ".join(allowed))
    known = ACTIVATIONS[name]
    listed = list(attrs.get("activation_params", ()))
    if listed and len(listed) != len(known):
        wanted = ", ".join(known) or "none"
        site.fail(
            f"activation_params has {len(listed)} numbers for {name}", f"{wanted}, in this order"
        )
    named = {p: attrs[_PREFIX + p] for p in known if _PREFIX + p in attrs}
    return dict(zip(known, listed, strict=False)) | named


def activate(nodes: Nodes, product: str) -> str:
    """Emit the activation of a node after `product`; return the name of the result."""
    site, given = nodes.site, read_parameters(nodes.site)
    match site.attrs["activation"]:
        case "":
            return product
        case "Clip":
            bounds = (nodes.like(given[p], 0) if p in given else "" for p in ACTIVATIONS["Clip"])
            return str(nodes.op("Clip", product, *bounds))
        case name:
            attrs: dict[str, Any] = dict(given)
            return str(nodes.op(name, product, **attrs))
