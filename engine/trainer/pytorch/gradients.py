"""The gradients of an exported module beside torch's own, before anything is trained.

Both sides run the example in training mode under equal draws (`torch_draws`), and differentiate the
sum of all outputs that are floats, each times fixed normal numbers: whatever is lost on the way, as
where a gradient stops, shows in some parameter.  A parameter with a gradient of torch's that the
exported model would not train is refused as well.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, NUMPY
from engine.base.errors import EngineError, ModelError, ModelWarning, join_names, warn_user
from engine.system.paths import Paths
from engine.trainer.pytorch import draws as torch_draws
from engine.trainer.pytorch.halves import without_halves
from engine.trainer.pytorch.module_call import ModuleCall, tensors_of
from engine.trainer.pytorch.program import in_mode, silently

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


MOST_BYTES = 64 << 20  # of a module's parameters up to which gradients are compared unasked
CLOSE = 2e-3  # of the norm of a gradient: how far one of float32 may be off
NOISE = 20  # times as far as torch's own float32 is from its float64
FLOOR = 1e-6  # of the norm of all gradients: what counts as zero
# Rounding may move an element over the kink of a Relu, and one element can be a large part of a
# gradient.  Such a difference goes in float64, where rounding is 2^29 times smaller, or with other
# examples, where a module or an op has float32 alone.  A wrong gradient stays.
ATTEMPTS = 4
LOSS = "check/loss"


def compare(
    torch: Any,
    module: Any,
    call: ModuleCall,
    path: str,
    outputs: Sequence[str],
    train: Sequence[str],
    left: Sequence[str],
    norms: Sequence[str],
) -> None:
    """Compare the gradients of the trained parameters with torch's.

    path: the exported model.  outputs: the names of its outputs.  train: names of parameters.
    left: the parameters that would not be trained, though they require a gradient.
    norms: the batch normalisations that keep their statistics.

    Raises:
        ModelError: one differs, or one that would not be trained has a gradient in torch; it is
            named.

    A `ModelWarning` says if they cannot be compared, as it is not known how numbers are drawn.
    """
    rows, fault = max(call.rows, 2), ""
    graph, values, unknown = None, dict[str, Array](), set[str]()
    for attempt in range(ATTEMPTS):
        given = _jitter(torch, call.rows, call.resized(rows), attempt)
        with torch_draws.fix_draws(torch) as draws:
            theirs = compute_torch_gradients(torch, module, given, [*train, *left])
        if graph is None:
            _check_left(module, path, call.sizes(rows), outputs, train, left, theirs)
            if not train:
                return
            graph, values, unknown = _make_gradient_graph(
                path, call.sizes(rows), outputs, train, norms
            )
        if draws.unknown | unknown:
            _warn_of_draws(draws.unknown | unknown)
            return
        theirs = {name: theirs[name] for name in train}
        feeds = {**_list_feeds(torch, graph, given), **values}
        ours = _run(graph, feeds, train)
        faults = _list_faults(ours, theirs)
        if faults and (exact := _compute_in_double(torch, module, given, train)) is not None:
            faults = [name for name in faults if not _is_near(name, ours, theirs, exact)]
            if faults and (wide := _run_in_double(graph, feeds, train)) is not None:
                faults = _list_faults(wide, exact)
        if not faults:
            return
        fault = fault or _describe_fault(faults[0], faults, ours, theirs, bool(draws.drawn), module)
    raise ModelError(fault)


def _warn_of_draws(unknown: Iterable[str]) -> None:
    warn_user(
        "gradients are not compared with torch's: the module draws random numbers with "
        f"{', '.join(sorted(unknown))}, which cannot be the same in both",
        ModelWarning,
    )


# --- torch's


def compute_torch_gradients(
    torch: Any, module: Any, given: Any, names: Sequence[str]
) -> dict[str, Array]:
    """Return the gradients of the parameters of these names, zero for those that have none.

    The gradients that the parameters hold are left as they are.
    """
    args, kwargs = given
    parameters = dict(module.named_parameters(remove_duplicate=False))
    before = {name: p.grad for name, p in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    with (
        in_mode(module, trains=True),
        silently(torch),
        without_halves(torch),
        torch.enable_grad(),
    ):
        made = dict(tensors_of(torch, module(*args, **kwargs), ""))
        terms = [
            (y * torch.from_numpy(_draw_weights(i, y.shape)).to(y.dtype)).sum()
            for i, y in enumerate(made.values())
            if y.is_floating_point() and y.requires_grad
        ]
        try:
            if terms:
                sum(terms).backward()
            gradients = {name: parameters[name].grad for name in names}
        finally:
            for name, parameter in parameters.items():
                parameter.grad = before[name]
    return {
        name: np.zeros(tuple(parameters[name].shape))
        if g is None
        else g.detach().to_dense().double().numpy()
        for name, g in gradients.items()
    }


def _draw_weights(place: int, shape: Sequence[int]) -> Array:
    """Return the weights of an output in the sum: normal, and smaller for larger outputs."""
    sizes = [int(d) for d in shape]
    return np.asarray(
        torch_draws.draw_normal(sizes, place + 1) / math.sqrt(max(1, math.prod(sizes)))
    )


def _jitter(torch: Any, rows: int, given: Any, attempt: int) -> Any:
    """Return arguments in whose batch no row is another's copy, nor all zeros.

    A batch of equal rows has no variance, and zeros give no gradient to the weights after them.

    attempt: later ones get other arguments: real numbers that differ by up to 1 % for each attempt,
        and integers in another order along the last axis.
    """

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.roll(attempt, -1) if attempt and value.ndim > 1 else value
        field = torch.from_numpy(torch_draws.draw_uniform(value.shape)).to(value.dtype)
        if not bool(value.any()):
            return field
        if value.ndim and len(value) > rows:
            value = value.clone()
            value[rows:] *= 0.95 + 0.1 * field[rows:]
        return value * (1 + 0.01 * attempt * field) if attempt else value

    return torch.utils._pytree.tree_map(change, given)


def _compute_in_double(
    torch: Any, module: Any, given: Any, names: Sequence[str]
) -> dict[str, Array] | None:
    """Compute the gradients in float64, which show how far float32 is off.

    None if the module cannot be copied or does not compute in float64.
    """
    if any(p._backward_hooks for p in module.parameters()):
        return None  # which a copy does not have
    try:
        twin = copy.deepcopy(module).double()
        wide = torch.utils._pytree.tree_map(
            lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v,
            given,
        )
        with torch_draws.fix_draws(torch):
            return compute_torch_gradients(torch, twin, wide, names)
    except Exception:  # of whatever class: the module's code may be for float32 alone
        return None


# --- ours


def open_graph(path: str, sizes: Mapping[str, int], inputs: Iterable[str] = ()) -> Graph:
    """Return the graph of an exported model, with the sizes of the axes that may have any.

    inputs: parameters that are inputs of it: values that depend on them are not constants.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.symbols import rename
    from engine.graphs.offline.normalize import name_nodes, turn_into_inputs
    from engine.graphs.passes import control

    graph = onnx_io.load(path)
    turn_into_inputs(graph, inputs)
    graph = name_nodes(control.unroll(graph))
    rename(graph, sizes)
    return graph


def _make_gradient_graph(
    path: str,
    sizes: Mapping[str, int],
    outputs: Sequence[str],
    train: Sequence[str],
    norms: Sequence[str],
) -> tuple[Graph, dict[str, Array], set[str]]:
    """Return the graph of the gradients of the same sum, with parameters as inputs, and values.

    And the random ops whose numbers are not known.
    """
    from engine.graphs.ir.graph import Node
    from engine.graphs.offline.buffers import list_moved, read_new
    from engine.graphs.offline.differentiate import differentiate
    from engine.graphs.offline.modes import choose_mode
    from engine.graphs.offline.normalize import pass_on, turn_into_inputs
    from engine.graphs.passes.batchnorm import (
        choose_trained,
        give_own_statistics,
        set_training_form,
    )
    from engine.graphs.passes.foreign import give_pool_grads_input
    from engine.graphs.passes.infer import infer
    from engine.graphs.passes.patterns import fuse_patterns
    from engine.graphs.passes.simplify import prune

    graph = choose_mode(open_graph(path, sizes), trains=True)
    unknown = torch_draws.fix(graph)
    read_new(list_moved(graph))
    moving = choose_trained(graph, train, (), list(norms) if norms else False)
    # Statistics move where they are, so that they cannot be constants.
    values = turn_into_inputs(graph, [*train, *give_own_statistics(graph, moving)])
    types = infer(graph).types
    terms = []
    for i, y in enumerate(outputs):
        if types[y].dtype not in FLOATS:
            continue
        weights, term = f"check/weights_{i}", f"check/term_{i}"
        drawn = _draw_weights(i, types[y].dims)
        graph.initializers[weights] = drawn.astype(NUMPY[types[y].dtype])
        graph.nodes += [
            Node("Mul", (y, weights), (f"{term}_of",), {}, "", f"{term}_mul"),
            Node("ReduceSum", (f"{term}_of",), (term,), {"keepdims": 0}, "", term),
        ]
        terms.append(term)
    graph.nodes.append(Node("Sum", tuple(terms), (LOSS,), {}, "", LOSS))
    graph.outputs = [LOSS]
    set_training_form(graph, moving)
    fuse_patterns(graph, infer(graph))
    gradients = differentiate(graph, LOSS, train, infer(graph).types)
    graph.outputs = [gradients[name] for name in train]
    return give_pool_grads_input(prune(pass_on(graph))), values, unknown


def _list_feeds(torch: Any, graph: Graph, given: Any) -> dict[str, Array]:
    """Return the tensors among the arguments, by the names of the inputs."""
    tensors = [v for v in torch.utils._pytree.tree_leaves(given) if isinstance(v, torch.Tensor)]
    return {name: v.numpy() for name, v in zip(graph.inputs, tensors, strict=False)}


def _run(graph: Graph, feeds: Mapping[str, Array], train: Sequence[str]) -> dict[str, Array]:
    """Return the gradients, in float64."""
    from engine.graphs.io import onnx_io
    from engine.graphs.passes.infer import infer
    from engine.training import backend

    graph.types = infer(graph.copy()).types
    gradients = backend.prepare(onnx_io.to_proto(graph)).run(feeds)
    return {name: g.astype(np.float64) for name, g in zip(train, gradients, strict=True)}


def _run_in_double(
    graph: Graph, feeds: Mapping[str, Array], train: Sequence[str]
) -> dict[str, Array] | None:
    """Return the gradients, computed in float64; None if an op of the graph has float32 alone."""
    from engine.graphs.passes.half import copy_in_type

    wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feeds.items()}
    try:
        return _run(copy_in_type(graph, "f32", "f64"), wide, train)
    except EngineError:
        return None


# --- the comparison


def _check_left(
    module: Any, path: str, sizes: Mapping[str, int], outputs: Sequence[str],
    train: Sequence[str], left: Sequence[str], theirs: Mapping[str, Array],
) -> None:  # fmt: skip
    """Refuse to leave a parameter as it is that has a gradient in torch.

    A parameter of several names is trained if one of them is.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    trained, floor = {id(parameters[name]) for name in train}, _compute_floor(theirs)
    lost = [
        n for n in left if id(parameters[n]) not in trained and _compute_norm(theirs[n]) > floor
    ]
    if lost:
        raise ModelError(
            f"the exported model would not train {join_names(lost, 1)}: its gradient in torch has "
            f"the norm {_compute_norm(theirs[lost[0]]):.4g}, and "
            f"{_explain(path, sizes, outputs, lost[0])}. "
            "Write that part of the module in another way, or freeze it with "
            "requires_grad_(False); check_gradients=False trains the others anyway"
        )


def _explain(path: str, sizes: Mapping[str, int], outputs: Sequence[str], name: str) -> str:
    """Return why no gradient reaches a parameter of the exported model: the node that stops it."""
    from engine.graphs.offline.differentiate import find_reached
    from engine.graphs.passes.infer import infer

    graph = open_graph(path, sizes, [name])
    if name not in graph.inputs:
        return "the model does not hold it under its name: torch's exporter has computed with it"
    known, depends = find_reached(graph, outputs, infer(graph).types), {name}
    for node in graph.nodes:
        reads = depends.intersection(node.inputs)
        if reads.difference(known) and not known.isdisjoint(node.outputs):
            return f"none flows through {node.op} {Paths.of(graph.metadata).title_node(node.name)}"
        if reads:
            depends.update(node.outputs)
    return "no output of the model depends on it"


def _compute_floor(gradients: Mapping[str, Array]) -> float:
    """Return the norm below which a gradient is zero up to rounding."""
    return FLOOR * math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))


def _list_faults(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[str]:
    """Return the parameters whose gradients are not close."""
    floor = _compute_floor(theirs)
    return [
        name
        for name, g in theirs.items()
        if not _compute_norm(ours[name] - g) <= CLOSE * _compute_norm(g) + floor
    ]


def _is_near(
    name: str, ours: Mapping[str, Array], theirs: Mapping[str, Array], exact: Mapping[str, Array]
) -> bool:
    """Return whether float32 explains how far our gradient is off: torch's is off, too."""
    noise = _compute_norm(theirs[name] - exact[name])
    bound = CLOSE * _compute_norm(exact[name]) + NOISE * noise + _compute_floor(exact)
    return _compute_norm(ours[name] - exact[name]) <= bound


def _compute_norm(value: Array) -> float:
    return float(np.linalg.norm(value.reshape(-1)))


def _describe_fault(
    first: str, faults: Sequence[str], ours: Mapping[str, Array], theirs: Mapping[str, Array],
    is_random: bool, module: Any,
) -> str:  # fmt: skip
    """Describe the first parameter that differs, for an error."""
    mine, own = ours[first], theirs[first]
    both = _compute_norm(mine) * _compute_norm(own)
    cosine = f"cosine {float((mine * own).sum()) / both:.4f}" if both else "one of them is zero"
    more = f" and of {len(faults) - 1} more" if len(faults) > 1 else ""
    reasons = [
        f"{type(part).__name__} {name!r} has backward hooks, which are not exported"
        for name, part in module.named_modules()
        if part._backward_hooks or part._backward_pre_hooks
    ]
    if is_random:
        reasons.append("random numbers that the exported model draws otherwise")
    reasons += [
        "an op whose gradient torch defines otherwise, as at a kink",
        "values that the module changes in place or keeps from call to call",
    ]
    return (
        f"the exported model does not train as the module does: the gradient of {first!r}{more} is "
        f"not torch's: norm {_compute_norm(mine):.4g}, torch's {_compute_norm(own):.4g}, "
        f"{cosine}, largest "
        f"difference {float(np.abs(mine - own).max(initial=0)):.3g}. Possible reasons: "
        f"{'; '.join(reasons)}. check_gradients=False trains all the same"
    )
