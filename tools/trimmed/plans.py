"""Plans of a trimmed build: the artifacts of a model, planned for a target and fixed shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.base.aliases import Shapes
from engine.base.errors import FileError, InputError, ModelError, StateError
from engine.checkpoint.storage import Checkpoint
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import evaluate
from engine.graphs.offline import export, sparse
from engine.graphs.offline.integer_weights import is_rounded
from engine.graphs.passes.infer import infer
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.op import Dim, TensorType
from engine.plan.plan import LOSS_SCALE, Kernel, KernelSpec, Plan
from engine.plan.states import StateLayout, lay_out
from engine.plan.verify import verify
from engine.runtime.arena import allocate
from engine.runtime.team import LAUNCH, WORKER
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.decoders import (
    DecoderPlans,
    open_decoder,
    plan_decoder,
)
from engine.tools.trimmed.kernel_set import find_makers
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.trainer.runs import ARTIFACTS
from engine.training import artifact_set, checks
from engine.training.inference import read_sharing
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.planning import GradientUse
from engine.training.state import CheckpointState

SAMPLES = 8  # of a step, where neither the model nor anybody says
PHASES = ("train", "eval", "infer", "optimizer")  # plans by the numbers C has for them
_ONLY: dict[str, tuple[str, ...]] = {
    "inference": ("infer",), "train": ("train",), "decoder": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """Plans of a model and everything else for a build.

    plans: by phase, the plans of the first batch size and of the optimizer.
    inputs, outputs: by phase, the names of the caller's inputs and outputs.
    state: the checkpoint.
    parameters: all names; first those that the training model reads, in the order of its inputs.
    listed: how many of these the training model reads.
    states: the states that the optimizer keeps.
    skips: whether updates are skipped if gradients are not finite.
    is_joined: whether the training plans update the parameters; there is no optimizer's plan then.
    only: as in `PlanRequest`.
    frozen: the bytes of the large constants of all models.
    inference: the serialised inference model with the checkpoint's parameters, or None.
    joined: for each partly trained weight of the inference model, the names of its two parameters,
        and the axis along which they are joined.
    batches: by number of samples, the plans of all phases but the optimizer's.
    makers: by symbol of a kernel, the name of an op that calls it; empty unless plans are closed.
    decoder: the plans that continue texts, or None.
    """

    plans: Mapping[str, Plan]
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]
    state: CheckpointState
    parameters: Sequence[str]
    listed: int
    states: StateLayout
    skips: bool
    is_joined: bool
    only: Only
    frozen: bytes
    inference: bytes | None
    joined: Mapping[str, tuple[Sequence[str], int]]
    batches: Mapping[int, Mapping[str, Plan]]
    makers: Mapping[str, str]
    decoder: DecoderPlans | None = None

    def list_plans(self) -> list[Plan]:
        """Return every plan once: of all batch sizes, then the optimizer's and the decoder's."""
        rest = [plan for plans in self.batches.values() for plan in plans.values()]
        writing = self.decoder.plans.values() if self.decoder else ()
        return [*rest, *(p for p in self.plans.values() if p not in rest), *writing]

    @property
    def scales_loss(self) -> bool:
        """True if training steps multiply the loss by a dynamic factor."""
        steps = [plans["train"] for plans in self.batches.values() if "train" in plans]
        return any(port.name == LOSS_SCALE for plan in steps for port in plan.inputs)

    def is_like(self, other: Planned) -> bool:
        """Return whether the plans for another CPU are the same."""
        plans = ([replace(p, target="") for p in each.list_plans()] for each in (self, other))
        return next(plans) == next(plans) and self.frozen == other.frozen

    def list_kernels(self) -> list[KernelSpec]:
        """Return every kernel that the plans use, in the order of symbols, then those that run
        plans with several threads.
        """
        plans = list(self.list_plans())
        specs = {spec.symbol: spec for plan in plans for spec in plan.specs}
        threads = plans[0].threads
        return [*(specs[s] for s in sorted(specs)), *(list_runners(threads) if threads > 1 else [])]


def list_runners(threads: int) -> list[KernelSpec]:
    """Return the kernels that run plans: the caller's and, if there are more threads, theirs."""
    return [LAUNCH, WORKER] if threads > 1 else [LAUNCH]


def list_artifacts(folder: Path) -> dict[str, Path]:
    """Return the paths of the artifacts in a folder, by what they are; some may be missing.

    folder: theirs, or the folder of a run, which has them in `artifacts` and none beside it.

    Raises:
        FileError: the training model or the checkpoint is missing.
    """
    keys = ("train", "eval", "optimizer", "checkpoint")
    names = dict(zip(keys, (*artifact_set.NAMES, artifact_set.CHECKPOINT), strict=True))
    inner = folder / ARTIFACTS
    is_run = (inner / names["train"]).exists()
    if is_run and not any((folder / name).exists() for name in names.values()):
        folder, is_run = inner, False
    paths = {key: folder / name for key, name in names.items() if (folder / name).exists()}
    for key in ("train", "checkpoint"):
        if key not in paths:
            near = f"; nearest: {os.fspath(inner)!r}" if is_run else ""
            raise FileError(f"{os.fspath(folder)}: no file {names[key]!r}{near}")
    return paths


def make_plans(
    files: Mapping[str, Path],
    target: Target,
    asked: PlanRequest,
    progress: StagePrinter = SILENT,
) -> Planned:
    """Plan the models of a folder of artifacts (see `list_artifacts`) for a CPU.

    files: also `decoder`, the model of a decoder, if one is asked for.

    Raises:
        BudgetError: no plan of a model keeps to the budget; it says the least that would do.
        StateError: joined plans are asked for, and there is no optimizer model, or it cannot be
            joined.
        EngineError: a model cannot be read or planned; the message names the model and the node.
    """
    progress.say(f"reading {next(iter(files.values())).parent}")
    state = load_state(files)
    if not state.loaded:
        raise InputError("the checkpoint is nominal; a build takes shapes and first values from it")
    memory = Memory(planning=asked.planning)

    def open_model(source: Path | bytes, what: str) -> Model:
        return Model(source, state, memory, asked.threads, what, target, asked.closed)

    opened = _open_models(files, state, asked.outputs, open_model)
    models = opened.models
    batches = [1] if asked.only == "decoder" else asked.batches
    batches = batches or [_find_fixed_batch(models["train"], asked.shapes)]
    _check(models, state)
    used = {phase: m for phase, m in models.items() if phase in _ONLY.get(asked.only, PHASES)}
    if not used and asked.decoder is None:
        raise ModelError(
            "--only inference: there is no inference model: the artifacts have no eval model, or "
            "no forward output was found in it"
        )
    writers = list[Model]()
    if (decoder := asked.decoder) is not None:
        progress.say("comparing a step of the decoder with a whole text, on this machine")
        raw = read_sharing(os.fspath(files["decoder"]), state)
        open_decoder(raw, state, asked.planning, decoder.positions).append([0])
        writers.append(open_model(raw, "decoder"))
    freeze_constants([*used.values(), *writers], memory)
    optimizer, states = None, lay_out((), {})
    if "optimizer" in files and "train" in used:
        optimizer = open_model(files["optimizer"], "optimizer model")
        if memory.scaling is not None:
            optimizer = optimizer.make_skipping()
        states = optimizer.lay_out_states()
        state.regions["state"] = allocate(states.nbytes)
    if asked.joined and optimizer is None:
        raise StateError("joined steps update parameters, and there is no optimizer model")
    update = GradientUse(optimizer, states) if asked.joined and optimizer is not None else None
    every = {
        b: _make_phase_plans(used, b, asked.shapes, len(batches) > 1, progress, update)
        for b in batches
    }
    writing = None
    if decoder is not None:
        progress.say(f"planning the decoder, {decoder.positions} positions")
        writing = plan_decoder(decoder, *writers)
    if asked.size:
        every = {b: _use_small_kernels(plans) for b, plans in every.items()}
        if writing is not None:
            writing = replace(writing, plans=_use_small_kernels(writing.plans))
    plans = dict(every[batches[0]])
    if optimizer is not None and update is None:
        plans["optimizer"] = optimizer.plan_update(states)
    graphs = [m.graph for m in (*used.values(), *([optimizer] if optimizer is not None else []))]
    listed = models["train"].parameters if models else []
    return Planned(
        plans=plans,
        inputs={phase: each.inputs for phase, each in used.items()},
        outputs={phase: each.outputs for phase, each in used.items()},
        state=state,
        parameters=[*listed, *(n for n, _ in state.parameters if n not in listed)],
        listed=len(listed),
        states=states,
        skips=optimizer is not None and optimizer.skips_updates(),
        is_joined=asked.joined,
        only=asked.only,
        frozen=memory.frozen.tobytes(),
        inference=opened.inference if "infer" in used else None,
        joined=opened.joins,
        batches=every,
        makers=find_makers(graphs, plans.values()) if asked.closed else {},
        decoder=writing,
    )


@dataclass(frozen=True, slots=True)
class _OpenedModels:
    """Models of a folder by phase, and of the inference model what `Planned` says."""

    models: dict[str, Model]
    inference: bytes | None
    joins: dict[str, tuple[Sequence[str], int]]


def _open_models(
    files: Mapping[str, Path],
    state: CheckpointState,
    outputs: Sequence[str],
    open_model: Callable[[Path | bytes, str], Model],
) -> _OpenedModels:
    """Open the training model and the eval model, and make an inference model of the latter.

    outputs: see `make_plans`.
    """
    models = {"train": open_model(files["train"], "training model")} if "train" in files else {}
    inference, joins = None, dict[str, tuple[Sequence[str], int]]()
    if "eval" in files:
        models["eval"] = open_model(files["eval"], "eval model")
        concats = sparse.find_joins(models["eval"].graph)
        joins = {name: (node.inputs, node.attrs["axis"]) for name, node in concats.items()}
        names = list(outputs) or forward_outputs(models["eval"])
        if names:
            inference, source = _make_inference(models["eval"], state, names)
            models["infer"] = open_model(source, "inference model")
    return _OpenedModels(models, inference, joins)


def _use_small_kernels(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    return {name: use_small_kernels(plan) for name, plan in plans.items()}


def load_state(files: Mapping[str, Path]) -> CheckpointState:
    """Return the checkpoint of a build; of a decoder alone, whose values are constants, an empty
    one.
    """
    if "checkpoint" in files:
        return CheckpointState.load_checkpoint(files["checkpoint"])
    return CheckpointState(Checkpoint(trainable={}, frozen={}))


def use_small_kernels(plan: Plan) -> Plan:
    """Return a plan that calls the `smaller` kernel in the place of each that declares one."""
    templates, chosen = list_templates(), dict[str, Kernel]()
    for kernel in plan.kernels:
        spec = kernel.spec
        smaller = templates[spec.template].smaller
        params = smaller(*spec.params) if smaller else spec.params
        chosen[kernel.symbol] = replace(kernel, spec=replace(spec, params=params))
    steps = tuple(replace(step, kernel=chosen[step.kernel].symbol) for step in plan.steps)
    kernels = {kernel.symbol: kernel for kernel in chosen.values()}
    return verify(replace(plan, steps=steps, kernels=tuple(kernels.values())))


def _find_fixed_batch(model: Model, given: Shapes) -> int:
    """Return the number of samples that a model or its given shapes fix: their first dimension.

    Raises:
        InputError: they fix none, or the first dimensions differ.
    """
    shapes = {n: given.get(n) or model.interface.inputs[n].shape for n in model.inputs}
    sizes = list({s[0] for s in shapes.values() if s and isinstance(s[0], int)})
    if len(sizes) != 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise InputError(
            f"the {model.what} does not fix its number of samples ({listed}): give --batch"
        )
    return sizes[0]


def _check(models: Mapping[str, Model], state: CheckpointState) -> None:
    """Check that the models fit the checkpoint, as `Module` does.

    Raises:
        EngineError: they do not fit.
    """
    for phase, model in models.items():
        checks.check(model, state.slots)
        if phase == "train":
            checks.check_training(model, state.slots)
        else:
            checks.check_eval(model)


def _make_inference(
    model: Model, state: CheckpointState, names: Sequence[str]
) -> tuple[bytes | None, bytes]:
    """Return the serialised inference model, with the checkpoint's values and, for planning,
    without.

    A model that rounds its weights in training has no form that a device could write: integers
    would have to be made of its floats.  Then the first is None.
    """
    graph = export.make_inference_model(model.graph, {}, names, keeps_roundings=True)
    if is_rounded(graph):
        return None, onnx_io.to_bytes(graph)
    values = {n: state.parameters[n].data for n in state.slots}  # in the order of the file
    whole = export.make_inference_model(model.graph, values, names, tied_apart=False)
    return onnx_io.to_bytes(whole), onnx_io.to_bytes(graph)


def _make_phase_plans(
    models: Mapping[str, Model],
    batch: int,
    shapes: Shapes,
    several: bool,
    progress: StagePrinter,
    update: GradientUse | None,
) -> dict[str, Plan]:
    """Return the plans for one batch size, by phase.

    several: as in `find_batch_shapes`.  update: what the training plan does with gradients;
        None if it adds them to those before.

    Raises:
        InputError: as `find_batch_shapes`.
    """
    planned: dict[str, Plan] = {}
    for phase, model in models.items():
        bound = find_batch_shapes(model, batch, shapes, several)
        progress.say(f"planning the {model.what}, batch {batch}")
        planned[phase] = model.plan(bound, update=update if phase == "train" else None)
    return planned


def find_batch_shapes(
    model: Model, batch: int, shapes: Shapes, several: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's inputs for one batch size, in numbers.

    several: there are several batch sizes.  A given shape then holds for all of them, with its
        symbolic first dimension replaced by this one.

    Raises:
        InputError: there are several, but the model fixes the number of samples; or as
            `find_input_shapes`.
    """
    first = {n: (*model.interface.inputs[n].shape, 0)[0] for n in model.inputs}
    if several and all(isinstance(d, int) for d in first.values()):
        raise InputError(f"the {model.what} fixes its number of samples: give one --batch")
    mine = {
        n: (batch, *s[1:]) if several and isinstance(first.get(n), str) else s
        for n, s in shapes.items()
    }
    bound = find_input_shapes(model, batch, mine)
    if model.what != "inference model":  # it is the eval model without labels
        _check_samples(model, batch, bound)
    return bound


def _check_samples(model: Model, batch: int, shapes: Shapes) -> None:
    """Check that a batch size is one that the shapes of a model's inputs have.

    Raises:
        InputError: the model, or a given shape, fixes another number of samples.
    """
    first = {n: s[0] for n, s in shapes.items() if s}
    declared = [model.interface.inputs[n].shape[0] for n in first]
    if declared and all(isinstance(d, int) for d in declared) and batch not in declared:
        fixed = " or ".join(str(d) for d in dict.fromkeys(declared))
        raise InputError(
            f"--batch {batch}: the {model.what} fixes its number of samples at {fixed} "
            f"(input {next(iter(first))!r} is {list(shapes[next(iter(first))])}): give "
            f"--batch {fixed}"
        )
    if first and batch not in first.values():
        raise InputError(
            f"--batch {batch}: no input of the {model.what} has {batch} as its first dimension: "
            + ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        )


def find_input_shapes(model: Model, batch: int, given: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's inputs, in numbers; see `bind_shapes`."""
    declared = {name: model.interface.inputs[name].shape for name in model.inputs}
    return bind_shapes(declared, batch, given, model.what, model.graph)


def count_samples(
    declared: Mapping[str, Sequence[int | str]], given: Shapes, samples: int = SAMPLES
) -> int:
    """Return the samples of a batch: as in a given shape, as the model fixes it, or `samples`."""
    first: list[int | str] = [s[0] for s in (*given.values(), *declared.values()) if s]
    return next((d for d in first if isinstance(d, int)), samples)


def bind_shapes(
    declared: Mapping[str, Sequence[int | str]],
    batch: int | None,
    given: Shapes,
    what: str,
    graph: Graph,
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs, in numbers.

    An input has its given shape, if there is one.  Otherwise a symbolic dimension has the size of
    its symbol in a given shape, or the batch size if the symbol is the first dimension of an input.
    A polynomial of symbols, such as `128*batch`, has its value.  A symbol of targets, such as the
    width of what a detector makes of an image, has the size that the model computes.

    declared: the shapes that the inputs have in the model.
    what: what messages call the model.

    Raises:
        InputError: the size of a dimension is not known.
    """
    symbols: dict[str, Dim] = {}
    for name, dims in declared.items():
        for d, known in zip(dims, given.get(name, ()), strict=False):
            if isinstance(d, str):
                symbols[d] = known
    first = [d for dims in declared.values() for d in dims[:1] if isinstance(d, str)]
    if batch is not None:
        each: dict[str, Dim] = dict.fromkeys(first, batch)
        for d in first:
            if evaluate(d, {s: n for s, n in each.items() if s != d}) == d:
                symbols.setdefault(d, batch)
    shapes = _replace_symbols(declared, symbols, given)
    bound = {name: shape for name, shape in shapes.items() if _is_bound(shape)}
    if 0 < len(bound) < len(shapes):
        symbols |= _compute_sizes(graph, bound, [n for n in shapes if n not in bound])
        shapes = _replace_symbols(declared, symbols, given)
    for name, shape in shapes.items():
        if not _is_bound(shape):
            raise InputError(
                f"input {name!r} of the {what} has shape {list(declared[name])}: give --shape "
                f"{name}=" + ",".join("N" if isinstance(d, str) else str(d) for d in shape)
            )
    return {name: tuple(int(d) for d in shape) for name, shape in shapes.items()}


def _replace_symbols(
    declared: Mapping[str, Sequence[Dim]], symbols: Mapping[str, Dim], given: Shapes
) -> dict[str, tuple[Dim, ...]]:
    return {
        name: tuple(given[name]) if name in given
        else tuple(evaluate(d, symbols) if isinstance(d, str) else d for d in dims)
        for name, dims in declared.items()
    }  # fmt: skip


def _is_bound(shape: Sequence[Dim]) -> bool:
    return not any(isinstance(d, str) for d in shape)


def _compute_sizes(
    graph: Graph, known: Mapping[str, tuple[Dim, ...]], unknown: Sequence[str]
) -> dict[str, int]:
    """Return the sizes of symbols that values have which are computed of known inputs alone."""
    symbolic, part = graph.copy(), graph.copy()
    infer(symbolic)
    made = {"", *part.initializers, *(name for name in part.inputs if name not in unknown)}
    part.inputs = {
        name: t.but(known[name]) if name in known else t
        for name, t in part.inputs.items()
        if name in made
    }
    nodes, fed = [], set(known)  # fed: values that depend on known inputs, unlike weights
    for node in part.nodes:
        if made.issuperset(node.list_reads()):
            nodes.append(node)
            made.update(node.outputs)
            if not fed.isdisjoint(node.list_reads()):
                fed.update(node.outputs)
    part.nodes, part.types = nodes, {}
    part.outputs = [name for node in nodes for name in node.outputs if name]
    infer(part, settled=True)
    pairs = [(symbolic.types[n], t) for n, t in part.types.items() if n in symbolic.types]
    for node in graph.nodes:
        for target in set(unknown).intersection(node.inputs):
            operands = [part.types.get(i) for i in node.inputs if i in fed]
            pairs += _match_target(graph.inputs[target], operands)
    return {
        d: n
        for named, numbered in pairs
        for d, n in zip(named.shape, numbered.shape, strict=False)
        if isinstance(d, str) and isinstance(n, int)
    }


def _match_target(
    target: TensorType, operands: Sequence[TensorType | None]
) -> Iterator[tuple[TensorType, TensorType]]:
    """Yield the type of a target with the type that an operand of its loss gives it.

    A target of numbers has the shape of the output, and labels have it without the classes.
    """
    rank = len(target.shape)
    for t in operands:
        if t is not None and len(t.shape) == rank:
            yield target, t
        elif t is not None and len(t.shape) == rank + 1:
            yield target, t.but((t.shape[0], *t.shape[2:]))


def forward_outputs(model: Model) -> list[str]:
    """Return the outputs of the forward model, found in the evaluation model: operands of the loss
    of it.

    The last input of an evaluation model holds the labels.  The nodes of the loss are those whose
    inputs depend on the labels.  An output of the forward model is a value that such a node reads
    and that depends on the other inputs alone.
    """
    graph: Graph = model.graph
    if len(model.inputs) < 2:
        return []
    labelled, data = {model.inputs[-1]}, set(model.inputs[:-1])
    names: list[str] = []
    for node in graph.nodes:
        reads = list(node.list_reads())
        if labelled & set(reads):
            names += [r for r in reads if r in data and r not in labelled and r not in names]
            labelled.update(node.outputs)
        elif data & set(reads):
            data.update(node.outputs)
    makers = graph.find_producers()
    return [name for name in names if name in makers]
