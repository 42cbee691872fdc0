"""Models for one case of their control flow: known values and shapes of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.base.errors import InputError, join_names
from engine.base.signatures import check_arguments
from engine.graphs.io.writable_model import Model, WritableModel

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


@check_arguments
@dataclass(frozen=True, slots=True)
class Specialized(WritableModel):
    """A model for one case, which prints as a summary.

    Attributes:
        graph: The model.
        taken: Names of the If nodes that their branch has replaced.
        left: Names of the If nodes whose condition is still not known.
    """

    graph: Graph
    taken: tuple[str, ...]
    left: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON types."""
        inputs = {name: [t.dtype, *t.shape] for name, t in self.graph.inputs.items()}
        return {"inputs": inputs, "taken": [*self.taken], "left": [*self.left]}

    def __str__(self) -> str:
        inputs = ", ".join(f"{name} {t}" for name, t in self.graph.inputs.items())
        lines = [f"inputs: {inputs}", f"conditions that are known now: {len(self.taken)}"]
        if self.left:
            lines.append(f"conditions that are not known: {join_names(self.left)}")
        return "\n".join(lines)

    __repr__ = __str__  # in a notebook


@check_arguments
def specialize(
    model: Model,
    values: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Specialized:
    """Make the model for known values and shapes of some inputs; the given one is not changed.

    A model whose weights are inside the branches of an If, such as a network for two sample rates,
    can be trained once the case is known: the branch that is taken becomes part of the model, and
    its weights become parameters.

        case = edgegrad.specialize("vad.onnx", {"sr": 16000}, {"input": ("batch", 512)})
        trainer = edgegrad.Trainer.from_onnx(case.to_bytes(), "mse")

    Args:
        model: A path, bytes or `ModelProto`.
        values: By the names of inputs, which the new model no longer has: numbers or arrays.
        shapes: By the names of inputs: a size for each axis, or a text to leave it as it is.

    Raises:
        FileError, ModelError: the model cannot be read.
        NameNotFoundError: the model has no such input; the message lists similar names.
        DTypeError, InputError: a value does not fit its input; or neither values nor shapes.
        ShapeError: a shape does not fit its input.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.specialize import list_conditions
    from engine.graphs.offline.specialize import specialize as specialize_graph

    if not values and not shapes:
        raise InputError("specialize: give values or shapes of inputs")
    graph = model.copy() if isinstance(model, Graph) else onnx_io.load(model)
    taken = specialize_graph(graph, values or {}, shapes or {})
    return Specialized(graph, tuple(taken), tuple(list_conditions(graph)))
