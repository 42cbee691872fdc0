"""Small models as PyTorch's exporters write them, which tests/graphs/test_provenance.py reads.

    python -m tests.support.make_exports

Needs torch and onnxscript.  Writes tests/data/exports/<model>-<form>.onnx, where the form is

    new, new_folded   by torch.export, without and with optimisation, which is its default
    old, old_folded   by tracing, in training mode and in evaluation mode, which is its default

Of the metadata, the traces of Python's stack are left out: they name files of one machine.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.support.places import EXPORTS

OLD = {"dynamo": False, "opset_version": 17}
FORMS: dict[str, dict[str, Any]] = {
    "new": {"dynamo": True, "optimize": False},
    "new_folded": {"dynamo": True, "optimize": True},
    "old": {
        **OLD,
        "training": torch.onnx.TrainingMode.TRAINING,
        "do_constant_folding": False,
    },
    "old_folded": OLD,
}


class Convolution(nn.Module):
    """Convolution followed by a batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.norm.running_mean.normal_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).mean((2, 3))


class Plain(nn.Module):
    """Batch normalisation without scale and bias, after one that was never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
        self.fresh, self.plain = nn.BatchNorm1d(3), nn.BatchNorm1d(2, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.last(torch.relu(self.fresh(self.first(x)))))


class Adapted(nn.Module):
    """A weight to which a product of two matrices is added, as LoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3)
        self.a, self.b = nn.Parameter(torch.randn(1, 4)), nn.Parameter(torch.randn(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.base.weight + self.b @ self.a, self.base.bias)


class Scaled(nn.Module):
    """A scalar parameter that is used through a function of it, and a number of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale.exp() + 1.5


class Norms(nn.Module):
    """Two layer normalisations that were never trained, so that their parameters are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.second = nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.layer(self.first(x))))


class Tied(nn.Module):
    """An embedding and a projection that share one weight, and parameters that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.project.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(torch.tanh(self.embed(x)) * 0.5)


class Layer(nn.Module):
    """Products of three axes, whose weights exporters transpose ahead, in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.norm = nn.Linear(4, 4, bias=False), nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.mlp(self.q(x)))


class Layers(nn.Module):
    """Two layers, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.twice, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.twice(torch.tanh(self.twice(x))).mean(1))


def list_models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """The models by name, each with an input."""
    torch.manual_seed(0)
    row, weight_norm = torch.randn(5, 4), parametrizations.weight_norm
    return {
        "convolution": (Convolution(), torch.randn(2, 1, 5, 5)),
        "plain": (Plain(), row),
        "weight_norm": (weight_norm(nn.Linear(4, 3)), row),
        "adapted": (Adapted(), row),
        "scaled": (Scaled(), row),
        "norms": (Norms(), row),
        "tied": (Tied(), torch.tensor([[1, 2]])),
        "layers": (Layers(), torch.randn(5, 3, 4)),
    }


def main() -> None:
    """Write all models in all forms."""
    EXPORTS.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    for name, (module, x) in list_models().items():
        for form, options in FORMS.items():
            module.train(not form.endswith("folded"))
            stream = io.BytesIO()
            torch.onnx.export(module, (x,), stream, verbose=False, **options)
            proto = onnx.load_from_string(stream.getvalue())
            for node in proto.graph.node:
                kept = [e for e in node.metadata_props if not e.key.endswith("stack_trace")]
                del node.metadata_props[:]
                node.metadata_props.extend(kept)
            onnx.save(proto, EXPORTS / f"{name}-{form}.onnx")


if __name__ == "__main__":
    main()
