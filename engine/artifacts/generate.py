"""Artifacts: the files of a training run, made from a forward ONNX model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from engine.base import arguments
from engine.base.element_types import OF_NUMPY
from engine.base.errors import (
    FileError,
    InputError,
    ModelWarning,
    NameNotFoundError,
    StateError,
    UnsupportedOpError,
    suggest_nearest,
    warn_user,
)
from engine.base.fields import expand_options
from engine.base.other_names import LOSS_INPUTS
from engine.base.signatures import check_arguments
from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, NominalTensor
from engine.graphs.io.note import METADATA
from engine.graphs.offline.optim_types import OPTIMIZERS, Method, OptimizerSpec, OptimType
from engine.loss_types import LOSSES, Loss, LossType
from engine.loss_types.base import LossOfScores
from engine.loss_types.several import Losses
from engine.onnxblock import Block, TrainingBlock, base, empty_base
from engine.runtime import mapping
from engine.system import files
from engine.system.files import NOTE
from engine.system.paths import Paths
from engine.training.artifact_set import (
    CHECKPOINT,
    EVALUATION,
    FORWARD,
    NOMINAL,
    OPTIMIZER,
    PROPERTY,
    TRAINING,
    SetId,
)
from engine.training.settings import ArtifactOptions
from engine.training.state import LEARNING_RATE

if TYPE_CHECKING:
    import onnx

    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.training import Artifacts, Choice
    from engine.training.keywords import ArtifactKeywords

CONSTANTS = "constants.{}.data"  # next to the models, if constants are external data; with the id


@check_arguments
@expand_options(ArtifactOptions)
def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Loss | Block | Mapping[str, Any] | None = None,
    optimizer: OptimType | OptimizerSpec | Block | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    **options: Unpack[ArtifactKeywords],
) -> None:
    """Write the artifacts of a forward model: everything that a device needs to train it.

    These are the files `training_model.onnx`, `eval_model.onnx`, `optimizer_model.onnx`,
    `checkpoint`, and with some options `nominal_checkpoint` and `constants.<id>.data`.  A file is
    written completely or not at all, and names its set (engine/training/artifact_set.py), so files
    of different calls cannot be mixed.

    Args:
        model: The forward model: a path, bytes or `ModelProto`; above 2 GiB, a path.
        requires_grad: Names of the initializers to train.
        frozen_params: Names of initializers to keep in the checkpoint without training them.
            Initializers in neither list become constants of the models.  If both lists are empty,
            all floating-point initializers are frozen.
        loss: The loss to minimise, or a Block, which gets the model's outputs.  For several
            outputs, a mapping from their names to losses, or to pairs of a loss and its weight.
            None: the model's first output.
        optimizer: The optimizer, or a Block, which gets the (trainable, frozen) parameters.  The
            checkpoint keeps its `lr`.  None: no optimizer model is written.
        artifact_directory: The folder to write to.  It is created if it does not exist.
        prefix: The prefix of the names of all files.
        ort_format, custom_op_library: Not supported.
        additional_output_names: Values of the model that become outputs, after the loss.
        nominal_checkpoint: Also write `nominal_checkpoint`, a checkpoint without values.
        loss_input_names: The outputs that the loss takes, by default the only one, then optionally
            the names of its targets: values of the model, or inputs to add.  By default, targets
            are new inputs such as `labels` or `target`.

    A `ModelWarning` lists changes by an exporter that make the model train differently from the
    exported module, and batch normalisations that are frozen by default.

    Raises:
        FileError: A file cannot be read or written.
        ModelError: The model is malformed, or a parameter has no influence on the loss.
        UnsupportedOpError: An op, opset or option is not supported, or an op has no gradient.
        NameNotFoundError: A name is not in the model.
        InputError, ShapeError, DTypeError: Arguments contradict one another or the model.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.io.keras_models import drop_stray_inputs
    from engine.graphs.offline import precision, sparse, ties, training
    from engine.graphs.offline.normalize import separate_equal
    from engine.graphs.offline.parameters import list_parameters
    from engine.graphs.passes import control

    asked = ArtifactOptions(**options)
    _refuse_unsupported(ort_format, custom_op_library)
    extra = _list_names("additional_output_names", additional_output_names)
    chosen = _list_names("loss_input_names", loss_input_names)
    trained, frozen = (
        _list_names("requires_grad", requires_grad),
        _list_names("frozen_params", frozen_params),
    )
    spec, method = _choose_loss(loss), _choose_optimizer(optimizer)
    forward = drop_stray_inputs(precision.widen_weights(onnx_io.load(model)))
    forward = control.unroll(separate_equal(forward))
    for note in forward.notes:
        warn_user(note, ModelWarning)
    paths = Paths.of(forward.metadata)
    trained, frozen = (paths.resolve(n, forward.initializers) for n in (trained, frozen))
    answers = forward.outputs[1 if spec is None else 0 :]  # the first one is the loss, without one
    norms = asked.frozen_batch_norm
    if asked.ties is None:
        copies = ties.find(forward, trained, frozen)
        if copies:
            warn_user(ties.tell(forward, copies), ModelWarning)
    else:
        trained, frozen = ties.tie(forward, asked.ties, trained, frozen)
    if asked.update is not None:
        trained, frozen, still = sparse.choose_and_split(forward, asked.update, trained, frozen)
        norms = still if norms is None else norms
    if (
        trained
        and precision.trains_no_product(forward, trained)
        and METADATA not in forward.metadata
    ):
        told = precision.tell(forward, list_parameters(forward))
        warn_user(told, ModelWarning)
    choice = training.choose(forward, trained, frozen)
    _refuse_choice(choice, method)
    if isinstance(spec, Block):
        forward = _add_block(forward, spec, chosen or forward.outputs, extra)
        forward.outputs, spec, extra = forward.outputs[:1], None, forward.outputs[1:]
    parts: list[str] = []
    if isinstance(spec, Losses):
        parts = [part.name for part in spec.parts]
        extra = [*parts, *(name for name in extra if name not in parts)]
    build = None if spec is None else _find_builder(spec, chosen or forward.outputs, bool(chosen))
    made = training.make_artifacts(forward, choice, build, extra, norms, proximal=asked.proximal)
    if parts:
        for graph in (made.training, made.evaluation):
            graph.metadata[NOTE + "losses"] = json.dumps(parts)
    if answers:
        made.evaluation.metadata[NOTE + "outputs"] = json.dumps(answers)
    kept = bool(forward.external) or METADATA in forward.metadata
    external = kept if asked.external_data is None else asked.external_data
    _write(made, method, _join_base(artifact_directory, prefix), nominal_checkpoint, external)


def _refuse_choice(choice: Choice, method: OptimizerSpec | Block | None) -> None:
    """Refuse to train inputs, and to make an optimizer for nothing."""
    if choice.inputs:
        raise InputError(
            f"requires_grad: {list(choice.inputs)} are inputs of the model; a Module accumulates "
            "gradients of parameters. onnxblock.TrainingBlock makes models with gradients of inputs"
        )
    if method is not None and not choice.trainable:
        raise StateError(
            "an optimizer needs something to train: give requires_grad, or optimizer=None"
        )


def _find_builder(spec: Loss, inputs: Sequence[str], is_chosen: bool) -> Callable[[Graph], str]:
    """Return the function that appends the loss to a graph.

    inputs: the operands of the loss.  is_chosen: whether the caller has named them.
    """
    if isinstance(spec, Losses):
        for each in spec.parts:
            if each.output not in inputs:
                raise NameNotFoundError(
                    f"loss: the model has no output {each.output!r}, but {list(inputs)}"
                    f"{suggest_nearest(each.output, inputs)}"
                )
        return _warn_and_build(spec, [(each.loss, each.output) for each in spec.parts], ())
    if len(inputs) > spec.takes and not is_chosen:
        raise InputError(
            f"the model has the outputs {inputs}; choose the one for the loss with {LOSS_INPUTS}"
        )
    return _warn_and_build(spec, [(spec, name) for name in inputs[:1]], inputs)


def _warn_and_build(
    spec: Loss, parts: Sequence[tuple[Loss, str]], inputs: Sequence[str]
) -> Callable[[Graph], str]:
    """Return the function that appends a loss; parts: each single loss, with its output."""

    def build(graph: Graph) -> str:
        for loss, output in parts:
            if isinstance(loss, LossOfScores):
                _warn_of_probabilities(graph, loss, output)
        return spec.build(graph, *inputs)

    return build


def _warn_of_probabilities(graph: Graph, spec: LossOfScores, output: str) -> None:
    """Warn if a loss makes probabilities of probabilities, and nobody has said that it should."""
    from engine.graphs.offline.head import find_scores, is_made_of_probabilities

    if spec.from_logits is not None:
        return
    name = type(spec).__name__
    if find_scores(graph, output, spec.applies) is not None:
        warn_user(
            f"the output {output!r} is probabilities, made by a {spec.applies}, and {name} applies "
            f"another one, as onnxruntime's does: {name}(from_logits=False) takes the scores "
            "before it, and from_logits=True is without this warning",
            ModelWarning,
        )
    elif is_made_of_probabilities(graph, output, spec.applies):
        warn_user(
            f"the output {output!r} is made of probabilities of a {spec.applies}, such as their "
            f"mean, and {name} applies another one: choose a loss of the values themselves, such "
            "as MSELoss, or an output before them; from_logits=True is without this warning",
            ModelWarning,
        )


def _add_block(forward: Graph, block: Block, inputs: Sequence[str], extra: Sequence[str]) -> Graph:
    """Append a loss that is a block; return a model with the outputs of the block and further ones.

    The first output is the loss.  If the block has made it, it is renamed, see `name_loss`.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.offline import training
    from engine.graphs.passes.infer import infer

    infer(forward)
    before = set(forward.list_values())
    with base(onnx_io.to_proto(forward)) as accessor:
        made = block(*inputs)
    outputs = [made] if isinstance(made, str) else arguments.check_names("output of the loss", made)
    grown = onnx_io.load(accessor.model)
    if not outputs:
        raise InputError(f"{type(block).__name__}: a loss must return the name of its output")
    grown.outputs = [*outputs, *extra]
    training.name_loss(grown, outputs[0], before, forward.outputs)
    return grown


def _make_optimizer_graph(method: OptimizerSpec | Block, made: Artifacts) -> Graph:
    """Return the graph of the optimizer model, of the training model's opset."""
    from engine.graphs.io import messages, onnx_io
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline import integer_training, optimizers
    from engine.graphs.passes.infer import infer

    opset = made.training.opsets[""]
    kinds = {name: OF_NUMPY[array.dtype] for name, array in made.trainable.items()}
    method = _match_by_names(method, Paths.of(made.training.metadata), list(made.trainable))
    if isinstance(method, OptimizerSpec):
        graph = method.build(opset, kinds)
        arguments.expect("the optimizer's graph", graph, Graph)
        integer_training.refuse_decay(made.training, graph)
        return graph
    tensors = [
        [messages.make_tensor(name, array) for name, array in part.items()]
        for part in (made.trainable, made.frozen)
    ]
    with empty_base(opset) as accessor:
        method(tuple(tensors))
    graph = onnx_io.load(accessor.model)
    optimizers.list_states(graph, kinds)  # or refuse it now
    infer(graph.copy())
    return graph


def _match_by_names(
    method: OptimizerSpec | Block, paths: Paths, names: Sequence[str]
) -> OptimizerSpec | Block:
    """Return the optimizer with groups that match by names what theirs match by paths, too."""
    if not isinstance(method, Method) or not method.groups:
        return method
    groups = [
        replace(group, match=paths.spell_patterns(group.match, names)) for group in method.groups
    ]
    options: dict[str, Any] = {"groups": groups}  # of the subclass, a dataclass
    spelt: Method = replace(method, **options)
    return spelt


def _write(
    made: Artifacts, method: OptimizerSpec | Block | None, base: str, nominal: bool, external: bool
) -> None:
    """Write all files into a temporary folder, and move them in place when all are complete.

    external: constants go to a file of their own.
    """
    from engine.graphs.io import onnx_io

    graphs = {TRAINING: made.training, EVALUATION: made.evaluation}
    models = hashlib.sha256(
        "".join(map(onnx_io.compute_digest, graphs.values())).encode()
    ).hexdigest()
    ids = SetId.of(models)
    if method is not None:
        graphs[OPTIMIZER] = _make_optimizer_graph(method, made)
        ids = SetId.of(models, onnx_io.compute_digest(graphs[OPTIMIZER]))
    folder, prefix = os.path.split(base)
    stamps = onnx_io.list_stamps([made.training, made.evaluation], folder) if external else ""
    for name, graph in graphs.items():
        if stamps and name != OPTIMIZER:
            graph.metadata[mapping.STAMPS] = stamps
        mine = ids if name == OPTIMIZER else SetId(ids.models)
        graph.metadata[PROPERTY] = str(mine)
    rate = method.learning_rate() if isinstance(method, Method) else None
    properties: dict[str, int | float | str] = {PROPERTY: str(ids)}
    if rate is not None:
        properties[LEARNING_RATE] = rate
    values = Checkpoint(trainable=made.trainable, frozen=made.frozen, properties=properties)
    checkpoints = {CHECKPOINT: values}
    if arguments.check_flag("nominal_checkpoint", nominal):
        checkpoints[NOMINAL] = _make_nominal(values)
    files.make_folder(folder)
    for name in (*graphs, *checkpoints):
        files.resolve_target(base + name)
    with files.staging(folder) as stage:
        place, referred = os.path.join(stage, prefix), set[str]()
        if external or any(map(onnx_io.needs_external_data, graphs.values())):
            both = {place + name: graphs.pop(name) for name in (TRAINING, EVALUATION)}
            data = place + CONSTANTS.format(ids.models)
            referred = onnx_io.save_sharing(both, data, home=folder)
        for name, graph in graphs.items():
            onnx_io.save(graph, place + name)
        for name, content in checkpoints.items():
            storage.write(content, place + name, artifact=True)
        _replace_set(stage, base, referred, list(checkpoints))


def save_forward(graph: Graph, folder: str) -> str:
    """Write the forward model of artifacts beside them; return its path.

    Weights of a large one are in a file that the artifacts also refer to, so they are stored once;
    weights in external data in this folder stay there.

    Raises:
        FileError: a file cannot be written.
    """
    from engine.graphs.io import onnx_io

    path = os.path.join(folder, FORWARD)
    if onnx_io.count_bytes(graph) < mapping.LARGE:
        onnx_io.save(graph, path)
    else:
        name = CONSTANTS.format(SetId.of(onnx_io.compute_digest(graph)).models)
        onnx_io.save_sharing({path: graph}, os.path.join(folder, name))
    return path


def _replace_set(stage: str, base: str, referred: set[str], checkpoints: Sequence[str]) -> None:
    """Replace the files of the previous set by the new ones.

    A process that is killed meanwhile leaves files of two sets, which are refused if both name
    their set.  A training model without a name is removed first: without it, nothing in the folder
    can be trained.

    stage: the folder with the new files.  base: the prefix of the paths of the set.
    referred: the files with constants that the models refer to.  Files of the forward model in the
        folder stay as well, because artifacts may be made from it again.
    """
    from engine.graphs.io import onnx_io

    folder, prefix = os.path.split(base)
    training = files.resolve_target(base + TRAINING)
    if os.path.isfile(training) and not _says_its_set(training):
        files.remove(training)
        files.sync_folder(folder)
    for name in checkpoints:
        storage.move(os.path.join(stage, prefix + name), base + name)
    key = base + TRAINING
    moves = [(os.path.join(stage, n), os.path.join(folder, n)) for n in sorted(os.listdir(stage))]
    for each in (False, True):
        for source, path in moves:
            if (path == key) == each:
                files.move(source, path)
        files.sync_folder(folder)
    kept = referred | onnx_io.list_external_files(os.path.join(folder, FORWARD))
    others = re.compile(re.escape(prefix) + CONSTANTS.format("[0-9a-f]{32}"))
    for name in os.listdir(folder):
        if name not in kept and others.fullmatch(name):
            with contextlib.suppress(FileError):  # Windows keeps what a module has mapped
                files.remove(os.path.join(folder, name))


def _says_its_set(path: str) -> bool:
    """Return whether a model has an id of its set, which is the last that is written into a
    file.
    """
    with open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - 256, 0))
        return PROPERTY.encode() in file.read()


def _refuse_unsupported(ort_format: bool, library: str | os.PathLike[str] | None) -> None:
    if arguments.check_flag("ort_format", ort_format):
        raise UnsupportedOpError(
            "ort_format=True: .ort files are not written; the .onnx artifacts serve all devices"
        )
    if library is not None:
        raise UnsupportedOpError(
            f"custom_op_library={library!r}: custom operators are not supported"
        )


def _list_names(title: str, names: Sequence[str] | None) -> list[str]:
    """Return a list of names, empty for None; `title` is what messages call it."""
    return [] if names is None else arguments.check_names(title, names)


def _choose_loss(loss: LossType | Loss | Block | Mapping[str, Any] | None) -> Loss | Block | None:
    if isinstance(loss, LossType):
        return LOSSES[loss]()
    if loss is None or isinstance(loss, Loss):
        return loss
    if isinstance(loss, Mapping):
        return Losses.of(
            {n: LOSSES[each]() if isinstance(each, LossType) else each for n, each in loss.items()}
        )
    if isinstance(loss, Block):
        if isinstance(loss, TrainingBlock):
            raise InputError(
                "loss: a TrainingBlock makes its own models; give the loss block that it contains"
            )
        return loss
    raise InputError(f"loss={loss!r}; expected a LossType, a Loss, an onnxblock.Block or None")


def _choose_optimizer(
    optimizer: OptimType | OptimizerSpec | Block | None,
) -> OptimizerSpec | Block | None:
    if isinstance(optimizer, OptimType):
        return OPTIMIZERS[optimizer]()
    if optimizer is None or isinstance(optimizer, OptimizerSpec | Block):
        return optimizer
    raise InputError(
        f"optimizer={optimizer!r}; expected an OptimType, an optimizer, an onnxblock.Block or None"
    )


def _join_base(directory: str | os.PathLike[str] | None, prefix: str) -> str:
    """Return the beginning of the paths of all files: the folder and the prefix."""
    folder = (
        os.getcwd() if directory is None else arguments.check_path("artifact_directory", directory)
    )
    return os.path.join(folder, arguments.check_prefix("prefix", prefix))


def _make_nominal(values: Checkpoint) -> Checkpoint:
    def strip_values(parameters: Any) -> dict[str, NominalTensor]:
        return {name: NominalTensor(array.dtype) for name, array in parameters.items()}

    names = strip_values(values.trainable), strip_values(values.frozen)
    kept = {PROPERTY: values.properties[PROPERTY]}
    return Checkpoint(trainable=names[0], frozen=names[1], nominal=True, properties=kept)
