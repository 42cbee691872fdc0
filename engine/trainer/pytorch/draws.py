"""Random numbers that torch and the engine draw alike, so that what they compute can be compared.

A draw is a field: an array of numbers that its shape decides.  While a module runs under
`fix_draws(torch)`, what it draws is made of these, and `fix(graph)` puts them in the place of a
graph's random nodes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY, OF_ONNX

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph, Names, Node


def draw_uniform(shape: Sequence[int]) -> Array:
    """Return the uniform numbers of a shape, in (0, 1) and away from both ends."""
    return _make_generator(shape).uniform(0.001, 0.999, tuple(shape))


def draw_normal(shape: Sequence[int], number: int = 0) -> Array:
    """Return the normal numbers of a shape; there are as many such fields as one likes."""
    return _make_generator(shape, number).standard_normal(tuple(shape))


def _make_generator(shape: Sequence[int], number: int = 0) -> np.random.Generator:
    return np.random.default_rng([number, zlib.crc32(repr(tuple(map(int, shape))).encode())])


# --- torch


def fix_draws(torch: Any) -> Any:
    """Return a context in which torch draws these numbers.

    Its `drawn` counts what was; `unknown` are operators whose numbers it does not know.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Fixed(TorchDispatchMode):  # type: ignore[misc]  # torch is Any
        def __init__(self) -> None:
            super().__init__()
            self.drawn = 0
            self.unknown: set[str] = set()
            self.packed: dict[int, Any] = {}  # rows in the padded batch, by how many there are

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            drawn = func(*args, **(kwargs or {}))
            if func._schema.name == "aten::_pack_padded_sequence":
                self.packed[len(drawn[0])] = _list_packed(torch, *args)
            if torch.Tag.nondeterministic_seeded not in func.tags:
                return drawn
            given = {**_list_arguments(func, args), **(kwargs or {})}
            if given.get("dropout_p") == 0 or given.get("training") is False:
                return drawn  # attention that drops nothing, and RReLU in evaluation mode
            self.drawn += 1
            return self.draw(func, drawn, given)

        def draw(self, func: Any, found: Any, given: dict[str, Any]) -> Any:
            name = func._schema.name.removeprefix("aten::")
            if name == "native_dropout":
                if given["train"] is False:
                    return found
                keep = 1 - given["p"]
                mask = self.make_field(draw_uniform, found[1].shape) < keep
                found[1].copy_(mask)
                found[0].copy_(given["input"] * mask / keep)
                return found
            if name == "rrelu_with_noise":
                low, high = given["lower"], given["upper"]
                slope = low + (high - low) * self.make_field(draw_uniform, found.shape)
                given["noise"].copy_(torch.where(given["self"] > 0, 1.0, slope))
                found.copy_(given["self"] * given["noise"])
                return found
            rule = _RULES.get(name)
            if rule is None:
                self.unknown.add(str(func))
                return found
            found.copy_(rule(lambda make: self.make_field(make, found.shape), given))
            return found

        def make_field(self, make: Callable[[Sequence[int]], Array], shape: Sequence[int]) -> Any:
            """Return a field; of packed rows, the field of the padded batch that they are of."""
            rows = self.packed.get(shape[0]) if shape else None
            if rows is None:
                return _make_tensor(torch, make(shape), torch.float64)
            places, count = rows
            return _make_tensor(torch, make((count, *shape[1:])), torch.float64)[places]

    return Fixed()


def _list_packed(torch: Any, x: Any, lengths: Any, batch_first: bool) -> tuple[Any, int]:
    """Return the places of packed rows in a padded batch by time, and how many it has."""
    time = x.shape[1 if batch_first else 0]
    inside = torch.arange(time).unsqueeze(1) < lengths.unsqueeze(0)
    return inside.flatten().nonzero().squeeze(1), inside.numel()


def _list_arguments(func: Any, args: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of an operator by their names, those that were left out as well."""
    schema = func._schema.arguments
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return {**defaults, **dict(zip([a.name for a in schema], args, strict=False))}


def _make_tensor(torch: Any, value: Array, dtype: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(value)).to(dtype)


Draw = Callable[[Callable[[Sequence[int]], Array]], Any]


def _draw_normal(draw: Draw, given: dict[str, Any]) -> Any:
    return given.get("mean", 0.0) + given.get("std", 1.0) * draw(draw_normal)


def _draw_bernoulli(draw: Draw, given: dict[str, Any]) -> Any:
    chance = given.get("p")
    return draw(draw_uniform) < (given["self"] if chance is None else chance)


# The values that each operator makes of a field, by its name and its arguments.
_RULES: dict[str, Callable[[Draw, dict[str, Any]], Any]] = {
    **dict.fromkeys(("rand", "rand_like"), lambda draw, given: draw(draw_uniform)),
    **dict.fromkeys(("randn", "randn_like"), lambda draw, given: draw(draw_normal)),
    **dict.fromkeys(("normal", "normal_", "normal_functional"), _draw_normal),
    **dict.fromkeys(("bernoulli", "bernoulli_"), _draw_bernoulli),
    **dict.fromkeys(
        ("uniform", "uniform_"),
        lambda draw, given: given["from"] + (given["to"] - given["from"]) * draw(draw_uniform),
    ),
    **dict.fromkeys(
        ("exponential", "exponential_"),
        lambda draw, given: -draw(draw_uniform).log() / given["lambd"],
    ),
    **dict.fromkeys(
        ("randint", "randint_like"),
        lambda draw, given: (
            draw(draw_uniform) * (given["high"] - given.get("low", 0)) + given.get("low", 0)
        ).floor(),
    ),
}


# --- graphs


def find_random(graph: Graph) -> Node | None:
    """Return the first node that draws random numbers, dropouts left out."""
    return next((n for n in graph.nodes if _is_random(n)), None)


def _is_random(node: Node) -> bool:
    from engine.kernels.ops.registry import list_ops

    declared = None if node.domain else list_ops().get(("", node.op))
    return declared is not None and declared.is_random and declared.name != "Dropout"


def fix(graph: Graph) -> set[str]:
    """Put the fields in the place of the random nodes of a graph of concrete inputs.

    Returns the ops of those that stay, as their numbers are not known.

    Before   n = RandomNormalLike(x) mean=0 scale=1;   y = Dropout(x, ratio, true)
    After    constants n, m;                           y = Mul(x, m)
    """
    from engine.graphs.ir.graph import Names
    from engine.graphs.passes.infer import infer

    known = infer(graph.copy())
    names = Names(graph)
    nodes, unknown = [], set()
    for node in graph.nodes:
        made = None if node.domain else _fix_node(graph, names, node, known.types, known.constants)
        if made is None and _is_random(node):
            unknown.add(node.op)
        nodes += [node] if made is None else made
    graph.nodes = nodes
    return unknown


def _fix_node(
    graph: Graph, names: Names, node: Node, types: Any, constants: Any
) -> list[Node] | None:
    """Return the nodes in the place of one; None if it is not random."""
    from engine.graphs.ir.graph import Node

    y = node.outputs[0]
    if node.op in ("RandomNormal", "RandomNormalLike"):
        own = {"mean": 0.0, "scale": 1.0, **node.attrs}
        value = own["mean"] + own["scale"] * draw_normal(types[y].dims)
    elif node.op in ("RandomUniform", "RandomUniformLike"):
        own = {"low": 0.0, "high": 1.0, **node.attrs}
        value = own["low"] + (own["high"] - own["low"]) * draw_uniform(types[y].dims)
    elif node.op == "Bernoulli":
        x, less = node.inputs[0], names.take_fresh(f"{y}_less")
        field = _add_constant(graph, names, draw_uniform(types[x].dims), types[x].dtype)
        to = node.attrs.get("dtype", next(k for k, t in OF_ONNX.items() if t == types[y].dtype))
        return [
            Node("Less", (field, x), (less,), {}, "", names.take_fresh(f"{node.name}_less")),
            Node("Cast", (less,), (y,), {"to": to}, "", node.name),
        ]
    elif node.op == "Dropout" and len(node.inputs) > 2 and constants.get(node.inputs[2], False):
        ratio = float(constants.get(node.inputs[1], np.array(0.5))) if node.inputs[1] else 0.5
        mask = draw_uniform(types[y].dims) < 1 - ratio
        scale = _add_constant(graph, names, mask / (1 - ratio), types[y].dtype)
        for name in filter(None, node.outputs[1:]):
            graph.initializers[name] = mask
        return [Node("Mul", (node.inputs[0], scale), (y,), {}, "", node.name)]
    else:
        return None
    graph.initializers[y] = value.astype(NUMPY[types[y].dtype])
    return []


def _add_constant(graph: Graph, names: Names, value: Array, dtype: str) -> str:
    name = names.take_fresh("draw")
    graph.initializers[name] = value.astype(NUMPY[dtype])
    return name
