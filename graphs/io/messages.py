"""Messages of ONNX for types, values and constants: reading and writing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import (
    CODE_OF_NUMPY,
    NUMPY,
    OF_ONNX,
    ONNX_CODE,
    round_to_bfloats,
    widen_bfloats,
)
from engine.base.errors import DTypeError, InputError, ModelError
from engine.graphs.io.protos import TensorProto, TypeProto, ValueInfoProto
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Scaling
from engine.kernels.vocabulary.op import Dim, Op, TensorType

# Constants of these types are kept as the next wider type, which holds the same values.  This makes
# no difference to ops that move or convert them.
PACKED: dict[int, str] = {TensorProto.INT4: "i8", TensorProto.UINT4: "u8"}
# Integers of 4 bits on their way to a file, for which numpy has no type, and their types there.
NIBBLE, UNSIGNED_NIBBLE = np.dtype([("int4", "i1")]), np.dtype([("uint4", "u1")])
NIBBLES: dict[np.dtype[Any], int] = {
    NIBBLE: TensorProto.INT4,
    UNSIGNED_NIBBLE: TensorProto.UINT4,
}
_FIELDS = {
    "f32": "float_data",
    "f64": "double_data",
    "i64": "int64_data",
    "u64": "uint64_data",
    "u32": "uint64_data",
}  # the field with the numbers of a constant that is not stored as bytes, if not int32_data


# Names by which exporters say that they do not know a size: two such sizes need not be equal.
# Paddle2ONNX and onnxmltools write them.
UNKNOWN_SIZES = {"?", "-1", "None"}
BFLOAT = ONNX_CODE["bf16"]
# The types of values in graphs, by the numbers of their types in files.
IN_GRAPHS: dict[int, str] = {**OF_ONNX, BFLOAT: "f32"}


def read_type(v: ValueInfoProto) -> TensorType | None:
    """Return the type of a value; None if its rank is unknown or the type is not supported."""
    if v.type.HasField("sequence_type"):
        element = v.type.sequence_type.elem_type.tensor_type.elem_type
        return TensorType(f"seq({IN_GRAPHS[element]})", ()) if element in IN_GRAPHS else None
    t = v.type.tensor_type
    if not t.HasField("shape") or t.elem_type not in IN_GRAPHS:
        return None
    return TensorType(IN_GRAPHS[t.elem_type], tuple(_list_dims(v.name, t)))


def _list_dims(name: str, t: TypeProto.Tensor) -> Iterable[Dim]:
    for axis, d in enumerate(t.shape.dim):
        known = d.HasField("dim_value") and d.dim_value >= 0
        named = "" if d.dim_param in UNKNOWN_SIZES else d.dim_param
        yield d.dim_value if known else named or f"?{name}.{axis}"


def read_text_type(v: ValueInfoProto) -> TensorType | None:
    """Return the type of a tensor of texts, with the element type "text"; None for any other
    value.
    """
    t = v.type.tensor_type
    is_text = t.elem_type == TensorProto.STRING and t.HasField("shape")
    return TensorType("text", tuple(_list_dims(v.name, t))) if is_text else None


def make_value_info(name: str, t: TensorType, is_text: bool = False) -> ValueInfoProto:
    """Return the message of a value's name and type; is_text: the value is a text that is read as
    numbers.
    """
    from onnx import helper

    if t.dtype.startswith("seq("):
        inner = helper.make_tensor_type_proto(ONNX_CODE[t.dtype[4:-1]], None)
        kind = helper.make_sequence_type_proto(inner)
    else:
        shape = [None if isinstance(d, str) and d.startswith("?") else d for d in t.shape]
        element = TensorProto.STRING if is_text else ONNX_CODE[t.dtype]
        kind = helper.make_tensor_type_proto(element, shape)
    return helper.make_value_info(name, kind)


def make_default_info(name: str, array: Array) -> ValueInfoProto:
    """Return the message of the name and type of an input that has this value by default."""
    from onnx import helper

    return helper.make_tensor_value_info(name, find_code(array), array.shape)


def read_values(t: TensorProto) -> Array:
    """Return the values of a constant, with ONNX's helper for types that tensors here do not have.

    Those of bfloat16 are float32.

    Raises:
        ValueError, TypeError, OverflowError: the message is malformed.
    """
    kind = OF_ONNX.get(t.data_type)
    is_bfloat = t.data_type == BFLOAT
    if (kind is None and not is_bfloat) or t.HasField("segment"):
        from onnx import numpy_helper

        values = numpy_helper.to_array(t)
        return values.astype(np.float32) if is_bfloat else values
    dtype = np.dtype(np.uint16 if kind is None else NUMPY[kind])
    if t.HasField("raw_data"):
        values = np.frombuffer(t.raw_data, dtype.newbyteorder("<"))
    elif kind in ("f16", None):  # their bits
        values = np.array(t.int32_data, np.int32).astype(np.uint16).view(dtype)
    else:
        values = np.array(getattr(t, _FIELDS.get(kind, "int32_data")))
    values = values.astype(dtype, copy=False)
    values = widen_bfloats(values) if is_bfloat else values
    return np.asarray(values.reshape(tuple(t.dims)))


def make_bfloats(array: Array) -> Array:
    """Return float32 rounded to bfloat16, in the array that the onnx package has for them."""
    from onnx import numpy_helper

    bits = round_to_bfloats(np.ascontiguousarray(array)).tobytes()
    return numpy_helper.to_array(TensorProto(data_type=BFLOAT, dims=array.shape, raw_data=bits))


def unpack(t: TensorProto) -> Array:
    """Return the values of a constant with 4 bits per element, in bytes."""
    return read_values(t).astype(NUMPY[PACKED[t.data_type]])


def _takes_packed(op: Op) -> bool:
    """Return whether an op moves or converts integers of 4 bits."""
    is_plain = op.movement.copies or op.title == "Cast"
    return op.scaling is Scaling.DEQUANTISES or (is_plain and not op.domain)


def check_packed(graph: Graph, names: Iterable[str]) -> None:
    """Refuse nodes for which it matters that constants of 4 bits are kept as bytes.

    names: the names of these constants.

    Raises:
        DTypeError: a node or an output of the graph, which the message names.
    """
    packed = set(names)
    for node in graph.nodes if packed else ():
        packed_inputs = [i for i in node.inputs if i in packed]
        op = list_ops().get((node.domain, node.op))
        if packed_inputs and not (op and _takes_packed(op)):
            names = sorted({op.name for op in list_ops().values() if _takes_packed(op)})
            raise DTypeError(
                f"{node.op} {node.name!r} reads {packed_inputs[0]!r} with 4 bits per element; "
                f"supported: {', '.join(names)}"
            )
        if packed_inputs and op and op.movement.copies:
            packed.update(node.outputs)
    if out := packed.intersection(graph.outputs):
        raise DTypeError(f"the output {min(out)!r} has 4 bits an element")


def fold_strings(graph: Graph) -> None:
    """Replace each Cast of a constant text to numbers by its result, in place.

    Before   c = Constant(value="1.5"); y = Cast(c), to=FLOAT
    After    const y = 1.5

    Raises:
        DTypeError: anything but a Cast to numbers reads a text.
        ModelError: a text is not a number.
    """
    texts = {n: a for n, a in graph.initializers.items() if a.dtype == object}
    for node in graph.nodes:
        value = node.attrs.get("value", node.attrs.get("value_strings"))
        if node.op == "Constant" and np.asarray(value).dtype.kind in "OU" and value is not None:
            texts[node.outputs[0]] = np.asarray(value)
        elif node.op == "Constant" and "value_string" in node.attrs:
            texts[node.outputs[0]] = np.asarray(node.attrs["value_string"])
    for name in texts:
        graph.initializers.pop(name, None)
    kept = []
    for node in graph.nodes:
        read = [i for i in node.inputs if i in texts]
        if not read and not texts.keys() & set(node.outputs):
            kept.append(node)
        for name in read:
            dtype = OF_ONNX.get(node.attrs.get("to", 0), "b1")
            if node.op != "Cast" or node.domain or dtype == "b1":
                raise DTypeError(
                    f"{node.op} {node.name!r} reads {name!r} of element type string; "
                    f"supported: Cast to numbers"
                )
            graph.initializers[node.outputs[0]] = _read_numbers(texts[name], dtype, name)
    if out := texts.keys() & set(graph.outputs):
        raise DTypeError(f"the output {min(out)!r} has element type string")
    graph.nodes = kept


def _read_numbers(texts: Array, dtype: str, name: str) -> Array:
    try:
        return arguments.parse_numbers(f"constant {name!r}", texts, np.dtype(NUMPY[dtype]))
    except InputError as error:
        raise ModelError(str(error)) from None


def make_initializers(graph: Graph) -> None:
    """Make initializers of the constants of a graph that has its weights among them, in place.

    Paddle2ONNX and spox write weights as nodes: there are no other weights then, and some node has
    a matrix of constants as its second input.  Constants of one element stay nodes: those files
    have them in formulas, as the 3 and 6 of a hard swish.

    Before   w = Constant(f32[8, 3, 3, 3]);  y = Conv(x, w)
    After    y = Conv(x, w), with the initializer w
    """
    if any(a.dtype.kind == "f" and a.ndim for a in graph.initializers.values()):
        return
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        value = node.attrs.get("value") if (node.domain, node.op) == ("", "Constant") else None
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 1:
            constants[node.outputs[0]] = value
    seconds = (node.inputs[1] for node in graph.nodes if len(node.inputs) > 1)
    if any(name in constants and constants[name].ndim > 1 for name in seconds):
        graph.initializers |= constants
        graph.nodes = [node for node in graph.nodes if constants.keys().isdisjoint(node.outputs)]


def read_texts(graph: Graph, source: str) -> None:
    """Give inputs of text that only Casts to numbers read the type of these numbers, in place.

    The caller parses the numbers of such an input; `Graph.text_inputs` names it.

    source: what errors call the model.

    Before   input t: text[n];  y = Cast(t), to=FLOAT;  z = Neg(y)
    After    input t: f32[n];   y = Identity(t);        z = Neg(y);      text_inputs [t]

    Raises:
        DTypeError: something other than a Cast reads such an input, or Casts to several types do.
    """
    for name, t in [(n, t) for n, t in graph.inputs.items() if t.dtype == "text"]:
        readers = [n for n in graph.nodes if name in n.list_reads()]
        kinds = {OF_ONNX.get(n.attrs.get("to", 0), "b1") for n in readers}
        if {(n.domain, n.op) for n in readers} - {("", "Cast")} or len(kinds) != 1 or "b1" in kinds:
            takers = ", ".join(f"{n.op} {n.name!r}" for n in readers)
            raise DTypeError(
                f"{source}: input {name!r}: element type string, read by {takers or 'nothing'}; "
                "supported: Cast to one type of numbers"
            )
        graph.inputs[name] = t.but(dtype=kinds.pop())
        graph.text_inputs.append(name)
        for node in readers:
            node.op, node.attrs = "Identity", {}


def write_texts(graph: Graph) -> Graph:
    """Return a copy of a graph in which nodes cast inputs of text to numbers, as in files."""
    out, names = graph.copy(), Names(graph)
    for name in [n for n in graph.text_inputs if n in graph.inputs]:
        number = names.take_fresh(f"{name}_number")
        for node in out.nodes:
            node.inputs = tuple(number if i == name else i for i in node.inputs)
        out.outputs = [number if o == name else o for o in out.outputs]
        out.types[number] = graph.inputs[name]
        cast = {"to": ONNX_CODE[graph.inputs[name].dtype]}
        out.nodes.insert(
            0, Node("Cast", (name,), (number,), cast, "", names.take_fresh(f"{name}/Cast"))
        )
    return out


def find_code(array: Array) -> int:
    """Return ONNX's number of the type of a constant; of bf16, too, which graphs do not have.

    Raises:
        DTypeError: ONNX has no such type, or no constant of ours has it.
    """
    if array.dtype in NIBBLES:
        return int(NIBBLES[array.dtype])
    return CODE_OF_NUMPY.get(array.dtype) or ONNX_CODE[find_type(array).dtype]


def count_stored(array: Array) -> int:
    """Return the bytes that a constant takes in a file."""
    return -(-array.size // 2) if array.dtype in NIBBLES else array.nbytes


def join_nibbles(integers: Array) -> Array:
    """Return u8 [..., ceil(n / 2)]: the lower 4 bits of u8 [..., n], the first of two in the lower
    half of a byte.
    """
    even = np.pad(integers & 15, [(0, 0)] * (integers.ndim - 1) + [(0, integers.shape[-1] % 2)])
    return np.asarray(even[..., ::2] | even[..., 1::2] << 4, np.uint8)


def make_content(array: Array) -> memoryview:
    """Return the bytes of a constant in a file: little endian; of 4-bit integers two a byte, the
    first in the lower half.
    """
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    stored = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    if array.dtype in NIBBLES:
        stored = join_nibbles(stored)
    content: memoryview[int] = stored.data
    return content


def make_tensor(name: str, array: Array) -> TensorProto:
    """Return the message of a constant."""
    t = TensorProto(name=name, data_type=find_code(array), dims=array.shape)
    t.raw_data = bytes(make_content(array))
    return t
