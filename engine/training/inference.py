"""Session: inference with as little as possible between Python and the model's plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import (
    DTypeError,
    InputError,
    ShapeError,
    UnknownValueError,
    suggest_nearest,
)
from engine.base.plan_options import PlanOptions
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.checkpoint.storage import Checkpoint
from engine.runtime.program import BoundProgram
from engine.system import config
from engine.training.decoder import Decoder
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.model_file import ModelSource
from engine.training.plan_cache import Records
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.profiling import Profile


_ONNX_NAMES = {"float32": "float", "float64": "double"}  # where ONNX's name differs from NumPy's


class NodeArg(NamedTuple):
    """An input or output of a model, as onnxruntime describes it.

    type: such as "tensor(float)"; "" for an output that the file does not describe.
    shape: text stands for a symbolic dimension; None for an output that the file does not describe.
    """

    name: str
    type: str
    shape: list[int | str] | None


def _describe(name: str, tensor: Any) -> NodeArg:
    """Return the description of an input or output; tensor: its type, None if it is unknown."""
    if tensor is None:
        return NodeArg(name, "", None)
    kind = np.dtype(NUMPY[tensor.dtype]).name if tensor.dtype in NUMPY else tensor.dtype
    return NodeArg(name, f"tensor({_ONNX_NAMES.get(kind, kind)})", list(tensor.shape))


class _KnownCall(NamedTuple):
    """A call with known inputs: what is compared with the next one before anything is hashed.

    inputs: the name, element type and shape of each.  planning, key: what these have decided.
    """

    planning: PlanOptions
    inputs: list[tuple[str, np.dtype[Any], tuple[int, ...]]]
    key: tuple[Any, ...]


class _Calls:
    """Signatures of the inputs that a model has run on, with the keys of their programs.

    names: names of the inputs.
    deciding: inputs whose values are part of plans.
    keys: keys of programs, by the element types and shapes of the inputs.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.names = tuple(model.inputs)
        self.deciding: list[str] = []
        self.keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._latest: _KnownCall | None = None

    def find_key(self, feed: Any) -> tuple[Any, ...] | None:
        """Return the key of the program for inputs; None if they need checks."""
        if type(feed) is not dict or len(feed) != len(self.names):
            return None
        latest, planning = self._latest, self.model.memory.planning
        if latest is not None and latest.planning is planning:
            for name, dtype, shape in latest.inputs:
                array = feed.get(name)
                if type(array) is not np.ndarray:
                    break
                if array.dtype is not dtype or array.shape != shape:
                    break
            else:
                return latest.key
        signature = self._begin_signature()
        for name in self.names:
            array = feed.get(name)
            if type(array) is not np.ndarray:
                return None
            signature += array.dtype, array.shape
        key = self.keys.get(tuple(signature))
        if key is not None:
            inputs = [(name, feed[name].dtype, feed[name].shape) for name in self.names]
            self._latest = _KnownCall(planning, inputs, key)
        return key

    def _begin_signature(self) -> list[Any]:
        """Return the settings that, with the inputs, decide the program."""
        return [self.model.memory.planning]

    def make_program(self, arrays: Mapping[str, Array]) -> BoundProgram:
        """Return the program for inputs, planned if necessary.

        Each value that planning needs becomes part of the plan.
        """
        shapes = [array.shape for array in arrays.values()]
        while True:
            values = {name: arrays[name] for name in self.deciding}
            try:
                program = self.model.get_program(shapes, values)
                break
            except UnknownValueError as error:
                new = [name for name in error.inputs if name not in self.deciding]
                if not new:
                    raise
                self.deciding += new
                self.keys.clear()
                self._latest = None
        if not self.deciding:
            kept = self.model.memory.programs
            keys = {known: key for known, key in self.keys.items() if key in kept}
            signature = self._begin_signature()
            for array in arrays.values():
                signature += array.dtype, array.shape
            self.keys = {**keys, tuple(signature): self.model.make_key(shapes)}
        return program

    def answer(
        self, key: tuple[Any, ...] | None, seed: int | None, output_names: Any, feed: Any, out: Any
    ) -> list[Array]:
        """Return the outputs, with the lock of the model held; arguments as of `Session.run`.

        key: of the program, as `find_key` returns it; `feed` is checked.
        """
        model, state = self.model, self.model.state
        state.settle()  # an interrupted step, whose flag this run may overwrite
        program = None if key is None else model.find_program(key)
        if program is None:
            program = self.make_program(feed)
        outputs = program.outputs
        names = model.outputs if output_names is None else output_names
        if output_names is not None or out is not None:
            self.check_outputs(names, {} if out is None else out, outputs)
        program.fill(program.inputs, [feed[name] for name in program.inputs])
        if out is None:
            lent: dict[str, Array] = {}
            if program.lends and len({*names}) == len(names):
                lent = program.lend_outputs(names)
            try:
                program.run(state.draws, seed)
            finally:
                if lent:
                    program.take_back_outputs()
            state.draws += program.draws
            return [lent[n] if n in lent else outputs[n].copy() for n in names]
        program.run(state.draws, seed)
        state.draws += program.draws
        for name in out:
            out[name][...] = outputs[name]
        return [out[name] if name in out else outputs[name].copy() for name in names]

    def check_inputs(self, feed: Any) -> dict[str, Array]:
        if not isinstance(feed, Mapping):
            raise DTypeError(f"the inputs are a {type(feed).__name__}; expected a dict by name")
        names = self.names
        for name in feed:
            if not isinstance(name, str):
                raise DTypeError(f"an input is named by {type(name).__name__}; expected a text")
            if name not in names:
                raise InputError(f"the model has no input {name!r}{suggest_nearest(name, names)}")
        missing = [name for name in names if name not in feed]
        if missing:
            raise InputError(f"the model also takes the inputs {missing}")
        return {name: self.model.make_array(name, feed[name]) for name in names}

    def check_outputs(self, names: Any, out: Any, outputs: Mapping[str, Array]) -> None:
        """Check the requested outputs, and the arrays to write them to."""
        if isinstance(names, str) or not isinstance(names, list | tuple):
            raise DTypeError(f"output_names is {names!r}; expected a list of names, or None")
        if not isinstance(out, Mapping):
            raise DTypeError(f"out is a {type(out).__name__}; expected a dict of arrays by name")
        for name in (*names, *out):
            if not isinstance(name, str):
                raise DTypeError(f"an output is named by {type(name).__name__}; expected a text")
            if name not in outputs:
                near = suggest_nearest(name, self.model.outputs)
                raise InputError(f"the model has no output {name!r}{near}")
        for name, array in out.items():
            place = outputs[name]
            if not isinstance(array, np.ndarray) or array.dtype != place.dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise DTypeError(f"out {name!r}: expected an array of {place.dtype}, got {kind}")
            if array.shape != place.shape:
                raise ShapeError(
                    f"out {name!r}: expected shape {list(place.shape)}, got {list(array.shape)}"
                )
            if not array.flags.writeable:
                raise InputError(f"out {name!r} is read-only; expected an array to write to")


def open_model(source: ModelSource | Any, threads: int | None = None) -> Model:
    """Open a model for answers alone, with a state and a memory of its own.

    source, threads: as of `Session`.

    Raises:
        FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
    """
    memory = Memory()
    state = CheckpointState(Checkpoint(trainable={}, frozen={}))
    number = config.choose_threads(threads)
    model = Model(source, state, memory, number, "model", records=Records, answers=True)
    freeze_constants([model], memory)
    return model


def read_sharing(source: str | os.PathLike[str] | bytes, state: CheckpointState) -> bytes:
    """Return a model whose initializers with the names of parameters of a state are inputs instead.

    Raises:
        InputError, ShapeError, DTypeError: the parameters do not fit; the message names one.
        FileError, ModelError, UnsupportedOpError: the model cannot be read.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.offline.sharing import share_parameters
    from engine.kernels.vocabulary.op import TensorType

    what = "model" if isinstance(source, bytes) else os.fspath(source)
    parameters = {n: TensorType(slot.dtype, slot.shape) for n, slot in state.slots.items()}
    trained = [name for name, slot in state.slots.items() if slot.trainable]
    return onnx_io.to_bytes(share_parameters(onnx_io.load(source), parameters, trained, what))


def open_sharing(source: str | os.PathLike[str] | bytes, other: Model) -> Model:
    """Open a model for answers that has the parameters of another, which it does not copy.

    Its initializers that have the names of parameters take their values; the rest is its own.  Its
    runs take turns with runs of the other model.

    Raises:
        EngineError: as `read_sharing`.
    """
    state, memory = other.state, other.memory
    with other.planning("read", other.records):
        raw = read_sharing(source, state)
    own = Memory(memory.kernels, memory.planning, memory.lock)
    model = Model(raw, state, own, other.threads, "model", records=Records, answers=True)
    freeze_constants([model], own)
    return model


@check_arguments(repeats=AT_LEAST_1, max_new_tokens=AT_LEAST_1)
class Session:
    """An ONNX model for inference, with the methods of `onnxruntime.InferenceSession`.

        session = edgegrad.Session("trained.onnx")
        (y,) = session.run(None, {"x": x})

    The first call with a combination of input shapes makes a plan for it.  Later calls with the
    same shapes and element types check nothing more.  If the value of an input determines a shape,
    it is a constant of the plan, and each other value needs another plan.

    Python threads may share a session: their calls take turns, because a plan has only one memory.
    """

    def __init__(self, path_or_bytes: ModelSource | Any, *, threads: int | None = None) -> None:
        """Open a model.

        Args:
            path_or_bytes: the model, as a path, bytes or `ModelProto`.
            threads: threads per run, including the calling one.  Default: EDGEGRAD_THREADS, or all
                cores.

        Raises:
            FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
        """
        model = open_model(path_or_bytes, threads)
        self._open(lambda: (model, None))

    def _open(self, find: Callable[[], tuple[Model, int | None]]) -> None:
        """Run the model that `find` returns at each call, with its state and its memory."""
        self._find = find
        self._calls = _Calls(find()[0])
        self._idle: dict[int, Decoder] = {}  # of earlier calls of `generate`, by their batches

    def __repr__(self) -> str:
        declared = self._calls.model.interface.inputs
        takes = ", ".join(f"{name} {declared[name]}" for name in self._calls.names)
        return f"Session({takes} -> {', '.join(self._calls.model.outputs)})"

    def get_inputs(self) -> list[NodeArg]:
        """Return the names, types and shapes of the inputs."""
        declared = self._calls.model.interface.inputs
        return [_describe(name, declared[name]) for name in self._calls.names]

    def get_outputs(self) -> list[NodeArg]:
        """Return the names of the outputs, with types and shapes if the file has them."""
        graph = self._calls.model.graph
        known = {**graph.inputs, **graph.types}
        return [_describe(name, known.get(name)) for name in self._calls.model.outputs]

    def list_bfloats(self) -> Sequence[str]:
        """Return the names of values that are bfloat16 in the file; their arrays are float32."""
        return self._calls.model.interface.bfloats

    def run(self, output_names: Any, input_feed: Any, *, out: Any = None) -> list[Array]:
        """Run the model on these inputs.

        Args:
            output_names: the names of the outputs to return, in this order; None for all.
            input_feed: a dict of all inputs by name: NumPy arrays, or what can become one.
            out: a dict of arrays by the names of outputs, to write to and return instead of new
                arrays.

        Returns:
            list: the outputs, as NumPy arrays.

        Raises:
            InputError, DTypeError, ShapeError: an input or output does not fit; the message names
                it.
            UnsupportedOpError: an operator is not supported; the message names the node.
            LabelError: an index or a length in the inputs is out of range.
        """
        model, seed = self._find()
        calls = self._calls
        if calls.model is not model:
            calls = self._calls = _Calls(model)
        key = calls.find_key(input_feed)
        if key is None:
            input_feed = calls.check_inputs(input_feed)
        return model.memory.lock.hold(calls.answer, key, seed, output_names, input_feed, out)

    def decoder(self, *, batch: int = 1, capacity: int | None = None) -> Decoder:
        """Return a decoder, which continues texts token by token with cached keys and values.

        The model must have caches as exporters write them: inputs `past_key_values.0.key` [batch,
        heads, past, width] and so on, and outputs `present.0.key` and so on.

        Args:
            batch: the number of texts.
            capacity: the largest number of tokens in a text; None if only memory limits it.

        Raises:
            InputError: the model has no such caches, or other inputs; the message names them.
        """
        return Decoder(self._find, batch=batch, capacity=capacity)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int,
        *,
        stop: Sequence[int] = (),
        choose: Callable[[Array], Any] | None = None,
    ) -> Array:
        """Continue texts with a model that `decoder` accepts.

        The session keeps the caches for the next call with the same number of texts.

        Args:
            prompt: integers [tokens], or [batch, tokens] for several texts of the same length.
            max_new_tokens: the largest number of tokens to add.
            stop: tokens that end a text.  A batch continues until each of its texts has had one.
            choose: a function that takes scores [batch, tokens] and returns a token for each text.
                Default: the token with the highest score.

        Returns:
            The new tokens, without the prompt: integers [tokens] or [batch, tokens].

        Raises:
            InputError, ShapeError, DTypeError, LabelError, UnsupportedOpError: as for `decoder` and
                `Decoder.append`.
        """
        ids = np.asarray(prompt)
        batch = len(ids) if ids.ndim == 2 else 1
        decoder = self._idle.pop(batch, None)
        if decoder is None or decoder.is_stale:
            decoder = self.decoder(batch=batch)
        decoder.truncate(0)
        scores = decoder.append(ids)
        made, ended = list[Array](), np.zeros(batch, bool)
        while True:
            chosen = scores.argmax(-1) if choose is None else np.asarray(choose(scores))
            if chosen.shape != (batch,):
                raise ShapeError(
                    f"choose returned the shape {list(chosen.shape)}; expected [{batch}], a token "
                    "for each text"
                )
            made.append(chosen)
            ended |= np.isin(chosen, list(stop))
            if len(made) == max_new_tokens or ended.all():
                break
            scores = decoder.append(chosen)
        self._idle[batch] = decoder
        tokens: Array = np.stack(made, -1)
        return tokens if ids.ndim == 2 else tokens[0]

    def profile(self, input_feed: Any, *, repeats: int = 20) -> Profile:
        """Measure where the time of a run goes.

        Args:
            input_feed: as for `run`.
            repeats: the number of measured runs, after a few runs to warm up.

        Returns:
            Profile: the times of kernels and nodes, see `engine.profiling.Profile`.

        Raises:
            InputError, DTypeError, ShapeError, UnsupportedOpError, LabelError: as for `run`.
            EngineError: measuring kernels are not shipped and cannot be compiled.
        """
        from engine.profiling.measure import ProfiledProgram, measure_profile

        self.run([], input_feed)  # checks the inputs, and plans
        model, seed = self._find()
        arrays = self._calls.check_inputs(input_feed)
        with model.memory.lock.take():
            program = self._calls.make_program(arrays)

            def prepare(number: int) -> tuple[int, int | None]:
                program.fill(program.inputs, [arrays[name] for name in program.inputs])
                return model.state.draws, seed

            part = ProfiledProgram(model.what, program, prepare, model.paths)
            return measure_profile("answer", [part], repeats, model.memory.kernels.resolve)


def follow(find: Callable[[], tuple[Model, int | None]]) -> Session:
    """Return a session for a model that may be replaced, with its state and its memory.

    find: returns the current model, and the seed of the random numbers that it draws; None for
        the process's seed.
    """
    session = Session.__new__(Session)
    session._open(find)
    return session
