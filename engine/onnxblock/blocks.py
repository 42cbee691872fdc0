"""Blocks: each appends a few nodes to the open model and returns the name of its output."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.errors import InputError
from engine.base.representation import represent
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.onnxblock._graph_utils import generate_graph_name
from engine.onnxblock.model_accessor import get_current

if TYPE_CHECKING:
    from onnx import ModelProto


@check_arguments
class Block(ABC):
    """A building block.  A subclass appends nodes to the model `base` in its method `build`.

    temp_file_name: accepted for compatibility; nothing is written.
    """

    base: ModelProto = None  # type: ignore[assignment]  # until the block is called

    __repr__ = represent

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):
            raise InputError(f"temp_file_name={temp_file_name!r}; expected a relative path")

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append to the model; return the name of the output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the open model and check what came out.

        Raises:
            StateError: no model is open.
            ModelError: the model is malformed now.
        """
        from engine.graphs.offline import compose

        self.base = get_current().model
        output = self.build(*args, **kwargs)
        compose.check(self.base)
        return output

    def infer_shapes_on_base(self) -> ModelProto:
        """Return the open model with the types of all values, as far as they can be inferred."""
        from engine.graphs.offline import compose

        compose.infer_shapes(get_current().model)
        return get_current().model

    def append_node(
        self, op: str, *inputs: str, output: str = "", domain: str = "", **attrs: Any
    ) -> str:
        """Append a node; returns the name of its output."""
        from engine.graphs.offline import compose

        name = generate_graph_name(output or f"{op.lower()}_output")
        compose.append(self.base, op, inputs, name, generate_graph_name(op), domain, **attrs)
        return name

    def _add_constant(self, what: str, value: Any, dtype: str = "f32") -> str:
        """Add a constant; returns its name."""
        from engine.graphs.offline import compose

        name = generate_graph_name(what)
        self.base.graph.initializer.append(compose.make_constant(name, value, dtype))
        return name

    def _find_dtype(self, name: str) -> str:
        """Return the element type of a value, or f32 if it is unknown."""
        from engine.graphs.offline import compose

        known = compose.find_type(self.base, name)
        return "f64" if known is not None and known.dtype == "f64" else "f32"


@check_arguments
class _BinaryOp(Block):
    def __init__(self, op_name: str) -> None:
        super().__init__()
        self._op_name = op_name

    def build(self, input_name1: str, input_name2: str) -> str:
        return self.append_node(self._op_name, input_name1, input_name2)


class Add(_BinaryOp):
    """a + b"""

    def __init__(self) -> None:
        super().__init__("Add")


class Sub(_BinaryOp):
    """a - b"""

    def __init__(self) -> None:
        super().__init__("Sub")


class Mul(_BinaryOp):
    """a b"""

    def __init__(self) -> None:
        super().__init__("Mul")


class Div(_BinaryOp):
    """a / b"""

    def __init__(self) -> None:
        super().__init__("Div")


@check_arguments
class Pow(Block):
    """x to a constant power."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        exponent = self._add_constant(
            "pow_exponent", self._exponent, self._find_dtype(pow_input_name)
        )
        return self.append_node("Pow", pow_input_name, exponent)


@check_arguments
class _UnaryOp(Block):
    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        self._op_name, self._attributes = op_name, attributes

    def build(self, input_name: str) -> str:
        return self.append_node(self._op_name, input_name, **self._attributes)


@check_arguments
class ReduceMean(_UnaryOp):
    """The mean of all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceMean", keepdims=int(keepdims))


@check_arguments
class ReduceSum(_UnaryOp):
    """The sum of all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceSum", keepdims=int(keepdims))


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))"""

    def __init__(self) -> None:
        super().__init__("Sigmoid")


class Log(_UnaryOp):
    """log x"""

    def __init__(self) -> None:
        super().__init__("Log")


class Neg(_UnaryOp):
    """-x"""

    def __init__(self) -> None:
        super().__init__("Neg")


class Abs(_UnaryOp):
    """|x|"""

    def __init__(self) -> None:
        super().__init__("Abs")


@check_arguments
class Constant(Block):
    """A number, as a float tensor of one element."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        return self._add_constant("initializer", [self._value])


@check_arguments
class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        return self.append_node("SequenceConstruct", *sequence_input_names)


@check_arguments
class ReduceAllL2(Block):
    """The norm over all elements of all inputs: a scalar."""

    def build(self, *reduce_node_input_names: str) -> str:
        return self.append_node("ReduceAllL2", *reduce_node_input_names, domain="com.microsoft")


@check_arguments
class Clip(Block):
    """x limited to the range between two bounds; either may be None."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = {"clip_min": clip_min, "clip_max": clip_max}

    def build(self, clip_input_name: str) -> str:
        dtype = self._find_dtype(clip_input_name)
        bounds = [
            "" if value is None else self._add_constant(name, value, dtype)
            for name, value in self._bounds.items()
        ]
        return self.append_node("Clip", clip_input_name, *bounds)


@check_arguments
class PassThrough(Block):
    """Returns the names of its inputs, and appends nothing."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        return input_names


@check_arguments
class InputLike(Block):
    """A new input of the model, with the type of the input or output `like`."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        from engine.graphs.offline import compose

        name = input_name or generate_graph_name("input")
        compose.add_input_like(self.base, self._like, name)
        return name


@check_arguments
class LabelEncoder(Block):
    """ai.onnx.ml's LabelEncoder: a key becomes the value at its position, or else the default."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        given = {
            "default_float": default_float, "default_int64": default_int64,
            "default_string": default_string, "keys_floats": keys_floats,
            "keys_int64s": keys_int64s, "keys_strings": keys_strings,
            "values_floats": values_floats, "values_int64s": values_int64s,
            "values_strings": values_strings,
        }  # fmt: skip
        self._attributes = {name: value for name, value in given.items() if value is not None}

    def build(self, label_encoder_input_name: str) -> str:
        return self.append_node(
            "LabelEncoder",
            label_encoder_input_name,
            output="label_encoder.output",
            domain="ai.onnx.ml",
            **self._attributes,
        )


@check_arguments
class Cast(Block):
    """x as another element type, a number of `onnx.TensorProto.DataType`."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        return self.append_node("Cast", cast_input_name, output="cast.output", to=self._to)


@check_arguments(in_features=AT_LEAST_1, out_features=AT_LEAST_1)
class Linear(Block):
    """alpha x W + beta b.

    W [in_features, out_features] and b [out_features] are drawn from the normal distribution.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shapes: dict[str, tuple[int, ...]] = {"linear.weight": (in_features, out_features)}
        if bias:
            self._shapes["linear.bias"] = (out_features,)
        self._factors: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta)}

    def build(self, linear_input_name: str) -> str:
        dtype, rng = self._find_dtype(linear_input_name), np.random.default_rng()
        weights = [
            self._add_constant(name, rng.standard_normal(shape), dtype)
            for name, shape in self._shapes.items()
        ]
        return self.append_node(
            "Gemm", linear_input_name, *weights, output="linear.output", **self._factors
        )
