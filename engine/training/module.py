"""Module: a training model and its eval model, over the parameters of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import DTypeError, EngineError, InputError, ShapeError, StateError
from engine.base.plan_options import MAX_THREADS, PlanOptions, Precision
from engine.base.signatures import AT_LEAST_1, Range, check_arguments
from engine.plan import noise
from engine.plan.plan import Plan
from engine.runtime.program import BoundProgram
from engine.system.config import choose_threads as default_threads
from engine.system.config import switch
from engine.training.loss_scale import GROWTH_INTERVAL, LossScale, check_loss_scale
from engine.training.membership import Membership
from engine.training.model import Model
from engine.training.model_file import RESET, ModelSource
from engine.training.session import ModuleSession
from engine.training.state import CheckpointState, view_values

if TYPE_CHECKING:
    from engine.profiling import Profile
    from engine.training.nonfinite import NonFinite


class ProfiledOptimizer(Protocol):
    """The optimizer of a module, as far as a profile needs it."""

    @property
    def session(self) -> ModuleSession: ...

    def make_ready(self) -> BoundProgram: ...


@check_arguments(threads=Range(1, MAX_THREADS), repeats=AT_LEAST_1, growth_interval=AT_LEAST_1)
class Module:
    """A training model, and optionally its eval model, over a checkpoint state.

    Args:
        train_model_uri: path or bytes of training_model.onnx.
        state: contains the parameters; gradients are allocated in it when first needed.
        eval_model_uri: path or bytes of eval_model.onnx.
        device: "cpu".
        session_options: an object whose `intra_op_num_threads`, if positive, sets the number of
            threads; the rest of it is ignored.
        threads: number of threads, including the caller's.  Default: EDGEGRAD_THREADS, or all cores
            if that is not set.
        check_finite: raise NonFiniteError when a loss is NaN or infinite.  Default:
            EDGEGRAD_CHECK_FINITE.
        seed: seed of the random numbers that steps draw, as for dropout.  Default: the seed of the
            process, see `set_seed`.
        ranks: the ranks that train the module together, each on its part of every batch.
        precision: precision of the plans.  "bf16" and "f16" store values between nodes in half the
            bytes; "auto" chooses the precision that is predicted to be fastest.
        loss_scale: factor of the loss in the backward pass, from 1 to 2^24, or "dynamic", which
            halves it when gradients are not finite.  The module's `Optimizer` divides gradients by
            it, as does the module where it shows them.  Default: "dynamic" with precision "f16",
            otherwise none.
        growth_interval: number of updates in a row after which a dynamic factor doubles.

    Raises:
        InputError, DTypeError: the loss scale is invalid.
        ModelError: a model is malformed, does not fit the state, or belongs to another set of
            artifacts than a file next to it.
        FileError: a file cannot be read.
    """

    training: bool
    session: ModuleSession  # for the package itself

    def __init__(
        self,
        train_model_uri: ModelSource,
        state: CheckpointState,
        eval_model_uri: ModelSource | None = None,
        device: str = "cpu",
        session_options: Any = None,
        *,
        threads: int | None = None,
        check_finite: bool | None = None,
        seed: int | None = None,
        ranks: Membership | None = None,
        precision: Precision = "f32",
        loss_scale: float | str | None = None,
        growth_interval: int = GROWTH_INTERVAL,
    ) -> None:
        if str(device) != "cpu":
            raise EngineError(f"device {device!r} is not supported; only 'cpu' is")
        wanted = getattr(session_options, "intra_op_num_threads", 0) or None
        self.threads = default_threads(threads if threads is not None else wanted)
        if check_finite is None:
            check_finite = switch("CHECK_FINITE") == "1"
        self.training = True
        self.session = ModuleSession(
            train_model_uri,
            eval_model_uri,
            state,
            threads=self.threads,
            check_finite=check_finite,
            seed=None if seed is None else noise.check_seed(seed),
            ranks=ranks,
        )
        memory = self.session.memory
        memory.planning = PlanOptions(precision=precision)
        scale = check_loss_scale("loss_scale", loss_scale)
        memory.scaling = LossScale.choose(precision, scale, growth_interval)

    @property
    def check_finite(self) -> bool:
        """True if a NaN or infinite loss raises NonFiniteError."""
        return self.session.check_finite

    @check_finite.setter
    def check_finite(self, value: bool) -> None:
        self.session.check_finite = value

    def _get_model(self) -> Model:
        return self.session.training if self.training else self.session.require_eval()

    def __repr__(self) -> str:
        model, declared = self._get_model(), self._get_model().interface.inputs
        takes = ", ".join(f"{name} {declared[name]}" for name in model.inputs)
        mode = "training" if self.training else "eval"
        return (
            f"Module({takes} -> {', '.join(model.outputs)}; {len(model.parameters)} parameters, "
            f"{mode} mode, threads {self.threads})"
        )

    def __call__(self, *user_inputs: Any, **named_inputs: Any) -> Any:
        """Run one step on inputs in the order of `input_names()`; None entries are skipped.

        Pass inputs by position, not by keyword, since the model chooses their names.

        Training mode computes the outputs, adds to the accumulated gradients (see
        `lazy_reset_grad`), and updates running statistics; eval mode only computes the outputs.
        Arrays must have the model's element types.  Returns one array, or a tuple of arrays in the
        order of `output_names()`.  If all inputs are OrtValues of onnxruntime, so are the outputs.

        Raises:
            InputError: wrong number of inputs, inputs by keyword, or an empty batch.
            DTypeError, ShapeError: an input does not fit; the message names it.
            LabelError: a class label is out of range.  Gradients and running statistics are
                unchanged.
            NonFiniteError: the loss is not finite and `check_finite` is set.  Running statistics
                are unchanged.  If this step was to overwrite the gradients, the next one will.
                Otherwise this step's gradients have been added to them.
            StateError: there is no eval model, a nominal state has no values yet, or a signal
                handler calls this inside another step.
        """
        model = self._get_model()
        if named_inputs:
            raise InputError(
                f"the {model.what} takes its inputs by position, in the order {model.inputs}; "
                f"got the keywords {list(named_inputs)}"
            )
        results = tuple(
            _convert_like(user_inputs, array) for array in self.session.run(model, user_inputs)
        )
        return results[0] if len(results) == 1 else results

    def find_nonfinite(self, *user_inputs: Any) -> NonFinite | None:
        """Find the first NaN or infinite tensor of a step on these inputs, and its node.

        The model of the current mode runs on copies, one kernel call at a time.  Parameters,
        gradients and counts stay as they are.  Values that reach neither the loss nor a gradient
        are ignored.

        Returns None if everything is finite; otherwise `str` of the result is a sentence.

        Raises:
            EngineError: as for a call of the module; OutOfMemoryError if the copies do not fit in
                memory.
        """
        from engine.training.nonfinite import search

        model = self._get_model()
        arrays = model.make_arrays(user_inputs)
        with self.session.memory.lock.take():
            bound = model.get_program([a.shape for a in arrays])
            return search(self.session, model, bound, arrays, self.session.state.draws, {})

    def train(self, mode: bool = True) -> Module:
        """Switch to training mode, or to eval mode if `mode` is False."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Switch to eval mode."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Make the next training step overwrite the gradients instead of adding to them."""
        self.session.overwrite = True

    def input_names(self) -> list[str]:
        """Return the names of the inputs that a call takes in the current mode."""
        return list(self._get_model().inputs)

    def output_names(self) -> list[str]:
        """Return the names of the outputs that a call returns in the current mode."""
        return list(self._get_model().outputs)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of all parameters, or of the trainable ones."""
        return sum(self.session.state.slots[n].size for n in self._order(trainable_only))

    def _order(self, trainable_only: bool) -> list[str]:
        slots = self.session.state.slots
        return [
            n for n in self.session.training.parameters if slots[n].trainable or not trainable_only
        ]

    def get_contiguous_parameters(self, trainable_only: bool = False) -> ParameterBuffer:
        """Copy the parameters to a single 1-D float32 array, in the order of the model's inputs.

        Raises:
            StateError: a nominal state has no values yet.
            DTypeError: a parameter is not float32.
        """
        self._require_values()
        parts = [self._get_flat(n) for n in self._order(trainable_only)]
        joined = (
            np.concatenate([p.reshape(-1) for p in parts]) if parts else np.zeros(0, np.float32)
        )
        return joined.view(ParameterBuffer)

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set the parameters from one float32 buffer, as `get_contiguous_parameters` returns it.

        Raises:
            InputError: the buffer is not an array.
            ShapeError: the buffer and the parameters have different numbers of elements.
            DTypeError: the buffer or a parameter is not float32.
            StateError: the state is nominal and needs all parameters: pass `trainable_only=False`.
        """
        values = arguments.make_array("buffer", buffer)
        state = self.session.state
        if not state.loaded and trainable_only:
            raise StateError(
                "a nominal state has no values to keep: pass trainable_only=False. "
                "Please load all the parameter states first"
            )
        size = self.get_parameters_size(trainable_only)
        if values.size != size:
            raise ShapeError(f"the parameters have {size} elements, the buffer {values.size}")
        if values.dtype != np.float32:
            raise DTypeError(f"the buffer is {values.dtype}: Only float is supported (float32)")
        names = self._order(trainable_only)
        for name in names:
            self._require_float(name)
        if not state.loaded:
            state.allocate()
        self.session.forget_statistics()
        at, flat = 0, values.reshape(-1)
        for name in names:
            target = self._get_flat(name)
            target[...] = flat[at : at + target.size].reshape(target.shape)
            at += target.size

    def _get_flat(self, name: str) -> Array:
        self._require_float(name)
        return self.session.state.view("param", name)

    def _require_float(self, name: str) -> None:
        dtype = self.session.state.slots[name].dtype
        if dtype != "f32":
            raise DTypeError(f"parameter {name!r} is {dtype}: Only float is supported (float32)")

    def _require_values(self) -> None:
        if not self.session.state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Write a plain ONNX model with the current parameters, which any ONNX runtime can run.

        graph_output_names: names of any values of the eval model; these become the outputs.

        Raises:
            StateError: there is no eval model, or the parameters have no values.
            InputError: the list of names is empty.
            NameNotFoundError: the eval model has no tensor with one of these names.
            FileError: the file cannot be written.
        """
        self.session.require_eval().export(
            self._get_values(), graph_output_names, inference_model_uri
        )

    def inference_model_to_bytes(self, graph_output_names: list[str]) -> bytes:
        """Return the inference model as bytes; see `export_model_for_inferencing`."""
        return self.session.require_eval().export(self._get_values(), graph_output_names, None)

    def _get_values(self) -> dict[str, Array]:
        self._require_values()
        return view_values(self.session.state, self.session.state.names)

    def profile(
        self,
        *user_inputs: Any,
        optimizer: ProfiledOptimizer | None = None,
        repeats: int = 20,
        processor_time: bool = False,
    ) -> Profile:
        """Measure where the time of a step on these inputs goes; see `engine.profiling.Profile`.

        The step runs a few times to warm up, then `repeats` times.  Afterwards the module is as it
        was before: parameters, gradients, statistics, the optimizer's moments, the number of draws.

        user_inputs: as for a call in the current mode.
        optimizer: the optimizer of this module, to include its update in the step; only in training
            mode.
        processor_time: count the time that each thread has run, instead of the time of day.  Of
            more threads than the machine has cores, only these times tell how busy each is; runs,
            spans and waits then mean nothing.

        Raises:
            InputError, DTypeError, ShapeError, LabelError, StateError: as for a call, or the
                optimizer belongs to another module, or the mode is not training.
            EngineError: measuring kernels are not shipped and cannot be compiled; or this system
                has no clock for `processor_time`.
        """
        from engine.profiling.measure import ProfiledProgram, measure_profile

        model = self._get_model()
        if optimizer is not None and (
            optimizer.session is not self.session or model is not self.session.training
        ):
            raise StateError(
                "the optimizer belongs to another module"
                if optimizer.session is not self.session
                else "an eval step has no update: profile it without an optimizer"
            )
        arrays = model.make_arrays(user_inputs)
        with self.session.memory.lock.take():
            update = None if optimizer is None else optimizer.make_ready()
            program = model.get_program([a.shape for a in arrays])

            def prepare(number: int) -> tuple[int, int | None]:
                program.fill(model.inputs, arrays)
                if model.resets:
                    program.inputs[RESET][...] = True
                self.session.fill_scale(program)
                if model.ranks is not None:
                    model.ranks.fill(program)
                return self.session.state.draws + number, self.session.seed

            parts = [ProfiledProgram(model.what, program, prepare, model.paths)]
            if update is not None:
                parts.append(ProfiledProgram("optimizer model", update, lambda _: (0, None)))
            with self.session.state.unchanged():
                title = f"{model.what}{' and optimizer' if update is not None else ''}"
                resolve = self.session.memory.kernels.resolve
                return measure_profile(
                    title, parts, repeats, resolve, processor_time=processor_time
                )

    def plan(self, *shapes: tuple[int, ...]) -> Plan:
        """Return the plan of the current mode for these input shapes.

        Raises:
            InputError: there are too few or too many shapes.
            ShapeError: a shape does not fit its input.
            UnsupportedOpError: an operator is not supported; the message names the node.
        """
        if len(shapes) != len(self._get_model().inputs):
            raise InputError(f"expected shapes of {self._get_model().inputs}, got {len(shapes)}")
        model = self._get_model()
        sizes = [
            arguments.check_shape(f"input {n!r}", s)
            for n, s in zip(model.inputs, shapes, strict=True)
        ]
        with self.session.memory.lock.take():
            return model.get_program(sizes).plan

    def plans(self) -> list[Plan]:
        """Return the plans in memory, of all modes and shapes, the most recently used first."""
        return [program.plan for program in reversed(list(self.session.memory.programs.values()))]


def _convert_like(inputs: Sequence[Any], array: Array) -> Any:
    """Return an array in the form of the inputs of a step.

    If all inputs are OrtValues, so is the result.  It comes from their class, so that this need not
    import onnxruntime.
    """
    kinds = {type(value) for value in inputs if value is not None}
    make = getattr(kinds.pop(), "ortvalue_from_numpy", None) if len(kinds) == 1 else None
    return array if make is None else make(array)


class ParameterBuffer(np.ndarray[Any, np.dtype[np.float32]]):
    """A 1-D float32 array with the method `numpy()` that callers of onnxruntime's OrtValue use."""

    def numpy(self) -> Array:
        """Return the values as a plain array."""
        return self.view(np.ndarray)
