"""Reading of the messages of one model into a graph: types, constants, nodes, and their bodies."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import NUMPY, OF_ONNX, ONNX_CODE, SUPPORTED, widen_bfloats
from engine.base.errors import DTypeError, InputError, ModelError, UnsupportedOpError
from engine.graphs.io import schemas, weights
from engine.graphs.io.messages import (
    BFLOAT,
    IN_GRAPHS,
    PACKED,
    check_packed,
    fold_strings,
    make_initializers,
    read_text_type,
    read_texts,
    read_type,
    read_values,
    unpack,
)
from engine.graphs.io.packed_tables import pack_tables
from engine.graphs.io.protos import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)
from engine.graphs.ir.graph import TYPE_ATTRIBUTES, Graph, Node, Subgraph, check_rank
from engine.kernels.vocabulary.op import TensorType
from engine.runtime import mapping
from engine.system import files

MAPPED_BYTES = 4096  # from this size on external data stays in its file
_MOST = (1 << 63) - 1  # of an offset or length


class MessageReader:
    """Conversion of the messages of one model into a graph.

    source: the name of the model in errors.  path: the path of the model, beside which its external
        data are, or None. data: its file with the large weights, or None. places: the places of
        external data read so far, as in `Graph.external`.  bfloats: the names of values of bfloat16
        read so far: constants, inputs, outputs, and the first outputs of nodes with an attribute of
        this type.
    """

    def __init__(self, source: str, path: str | None, data: mapping.Content | None) -> None:
        self.source, self.path, self.data = source, path, data
        self.bfloats: set[str] = set()
        self.opsets: dict[str, int] = {}
        self.places: list[tuple[str, int, int]] = []

    def read_graph(self, model: ModelProto) -> Graph:
        """Return the graph of a model, sorted and checked."""
        for o in model.opset_import:
            self.opsets["" if o.domain == "ai.onnx" else o.domain] = o.version
        out = self.read_body(model.graph, self.read_input_type)
        if len(set(out.outputs)) < len(out.outputs):
            name = next(o for n, o in enumerate(out.outputs) if o in out.outputs[:n])
            raise ModelError(f"{self.source}: two outputs are named {name!r}")
        read_texts(out, self.source)
        out.ir_version, out.doc = model.ir_version, model.doc_string
        out.producer, out.producer_version = model.producer_name, model.producer_version
        out.metadata = {p.key: p.value for p in model.metadata_props}
        out.metadata.pop(files.BFLOATS, None)  # a file may say anything
        if self.bfloats:
            out.metadata[files.BFLOATS] = json.dumps(sorted(self.bfloats))
        for text in out.list_texts():
            if not isinstance(text, str):  # protobuf returns bytes for text that is not UTF-8
                raise ModelError(f"{self.source}: {text!r} is not UTF-8")
        make_initializers(out)
        try:
            return out.sort().check()
        except ModelError as error:
            raise ModelError(f"{self.source}: graph {error}") from None

    def read_body(
        self, proto: GraphProto, input_type: Callable[[ValueInfoProto], TensorType]
    ) -> Graph:
        """Return the graph of a model or of the body of a control-flow node, not yet sorted or
        checked.

        input_type: returns the type of an input, or refuses it.
        """
        if proto.sparse_initializer:
            name = proto.sparse_initializer[0].values.name
            raise UnsupportedOpError(
                f"{self.source}: sparse initializer {name!r} is not supported; store it as a dense "
                "tensor"
            )
        nodes = [self.read_node(n) for n in proto.node]
        outputs = [o.name for o in proto.output]
        out = Graph(proto.name or "graph", {}, outputs, {}, nodes, self.opsets)
        for what, values in (
            ("initializer", proto.initializer), ("input", proto.input), ("output", proto.output)
        ):  # fmt: skip
            if any(not v.name for v in values):
                raise ModelError(
                    f"{self.source}: an {what} of {out.name!r} has no name; expected one"
                )
        for t in proto.initializer:
            if t.name in out.initializers:
                raise ModelError(f"{self.source}: two initializers are named {t.name!r}")
            out.initializers[t.name] = self.read_tensor(t, f"initializer {t.name!r}")
            if t.data_type == BFLOAT:
                self.bfloats.add(t.name)
        for v in proto.input:
            if v.name in out.inputs:
                raise ModelError(f"{self.source}: two inputs are named {v.name!r}")
            if v.name not in out.initializers:  # otherwise an old model, or a default value
                out.inputs[v.name] = input_type(v)
        for v in (*proto.input, *proto.value_info, *proto.output):
            check_rank(len(v.type.tensor_type.shape.dim), f"{self.source}: value {v.name!r}")
        for v in (*proto.value_info, *proto.output):
            known = self.read_type(v)
            if known is not None:
                out.types[v.name] = known
        kinds = {t.name: t.data_type for t in proto.initializer if t.data_type in PACKED}
        out.nibbles = frozenset(kinds)
        pack_tables(out, kinds)
        packed = list(kinds)
        packed += [n.output[0] for n in proto.node for a in n.attribute if a.t.data_type in PACKED]
        check_packed(out, packed)
        fold_strings(out)
        return out

    def read_type(self, v: ValueInfoProto) -> TensorType | None:
        """Return the type of a value; None if its rank is unknown or the type not supported."""
        if v.type.tensor_type.elem_type == BFLOAT:
            self.bfloats.add(v.name)
        return read_type(v)

    def read_inner_type(self, v: ValueInfoProto) -> TensorType:
        return self.read_type(v) or TensorType("?", ())

    def read_input_type(self, v: ValueInfoProto) -> TensorType:
        t = self.read_type(v) or read_text_type(v)
        if t is not None:
            return t
        where = f"{self.source}: input {v.name!r}"
        kind = v.type.WhichOneof("value")
        if kind != "tensor_type":
            raise DTypeError(f"{where}: {kind or 'no type'}; supported: tensors")
        if v.type.tensor_type.elem_type not in IN_GRAPHS:
            raise DTypeError(f"{where}: {_name_element(v.type.tensor_type.elem_type)}")
        raise ModelError(
            f"{where} has no shape: export the model with one, its dimensions may be symbolic"
        )

    def read_node(self, n: NodeProto) -> Node:
        """Return a node, checked against the known facts about its op."""
        where = f"{self.source}: {n.op_type} {n.name!r}"
        if not n.op_type:
            raise ModelError(f"{self.source}: node {n.name!r} has no operator")
        domain = "" if n.domain == "ai.onnx" else n.domain
        out = Node(n.op_type, tuple(n.input), tuple(n.output), {}, domain, n.name)
        schemas.check_node(n, out, self.opsets, self.source)
        for a in n.attribute:
            out.attrs[a.name] = self.read_attribute(a, where)
            is_type = a.name in TYPE_ATTRIBUTES and a.i == BFLOAT
            if is_type:
                out.attrs[a.name] = ONNX_CODE["f32"]
            if is_type or a.t.data_type == BFLOAT:
                self.bfloats.update(out.outputs[:1])
        return out

    def read_attribute(self, a: AttributeProto, where: str) -> Any:
        match a.type:
            case AttributeProto.FLOAT:
                return a.f
            case AttributeProto.INT:
                return a.i
            case AttributeProto.STRING:
                return self.read_text(a.s, a.name, where)
            case AttributeProto.TENSOR:
                return self.read_tensor(a.t, f"{where.removeprefix(self.source + ': ')} {a.name}")
            case AttributeProto.FLOATS:
                return list(a.floats)
            case AttributeProto.INTS:
                return list(a.ints)
            case AttributeProto.STRINGS:
                return [self.read_text(s, a.name, where) for s in a.strings]
            case AttributeProto.GRAPH:
                return Subgraph.of(self.read_body(a.g, self.read_inner_type), a.g)
        raise UnsupportedOpError(
            f"{where}: attribute {a.name!r} of type {schemas.name_kind(a.type)} is not supported"
        )

    def read_text(self, value: bytes, name: str, where: str) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{where}: attribute {name!r} is not UTF-8: {error}") from None

    def read_tensor(self, t: TensorProto, what: str) -> Array:
        where = f"{self.source}: {what}"
        if t.data_type not in (*IN_GRAPHS, *PACKED, TensorProto.STRING):
            raise DTypeError(f"{where}: {_name_element(t.data_type)}")
        check_rank(len(t.dims), where)
        if any(d < 0 for d in t.dims):
            raise ModelError(f"{where}: shape {list(t.dims)}; expected sizes of 0 or more")
        try:
            inside = None if self.data is None else weights.place_inside(t)
            if inside is not None:
                return self.read_inside(t, *inside)
            if t.data_location == TensorProto.EXTERNAL and t.data_type != TensorProto.STRING:
                return self.read_external(t, where)
            read = unpack if t.data_type in PACKED else read_values
            return np.asarray(read(t))
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelError(
                f"{where}: malformed tensor of shape {list(t.dims)}: {error}"
            ) from None

    def read_inside(self, t: TensorProto, offset: int, nbytes: int) -> Array:
        """Return a tensor whose bytes are in the file of the model.

        Raises:
            ValueError: the number of bytes in the file or shape differs.
        """
        assert self.data is not None
        is_packed = t.data_type in PACKED
        dtype = _find_dtype(t)
        array = np.frombuffer(self.data, dtype.newbyteorder("<"), nbytes // dtype.itemsize, offset)
        if is_packed:
            return unpack(TensorProto(data_type=t.data_type, dims=t.dims, raw_data=bytes(array)))
        if array.nbytes != nbytes:
            raise ValueError(f"{nbytes} bytes are not a multiple of the element size")
        array = array.astype(dtype, copy=False)
        return _widen(t, array).reshape(tuple(t.dims))

    def read_external(self, t: TensorProto, where: str) -> Array:
        """Return a tensor stored as bytes `offset .. offset+length` of a file beside the model."""
        entries = {e.key: e.value for e in t.external_data}
        location = PurePosixPath(entries.get("location", "").replace("\\", "/"))
        if self.path is None:
            raise ModelError(
                f"{where} is external data in {str(location)!r}; give the model's path instead"
            )
        if not files.is_inside(str(location)):
            raise ModelError(
                f"{where} is external data in {str(location)!r}, which is not in the model's folder"
            )
        is_packed = t.data_type in PACKED
        dtype = _find_dtype(t)
        count = math.prod(t.dims)
        count = -(-count // 2) if is_packed else count
        nbytes = count * dtype.itemsize
        try:
            offset, length = (
                arguments.parse_digits(k, entries.get(k) or str(d), 0, _MOST)
                for k, d in (("offset", 0), ("length", nbytes))
            )
        except InputError as error:
            raise ModelError(f"{where}: external data, {error}") from None
        if length != nbytes:
            raise ModelError(
                f"{where}: external data has {length} bytes at {offset}; the tensor takes {nbytes}"
            )
        self.places.append((str(location), offset, nbytes))
        path = os.path.join(os.path.dirname(self.path), location)
        read = mapping.open_array if nbytes >= MAPPED_BYTES else files.read_array
        array = read(path, dtype, count, offset, where, self.path)
        if is_packed:
            return unpack(TensorProto(data_type=t.data_type, dims=t.dims, raw_data=bytes(array)))
        return _widen(t, array).reshape(tuple(t.dims))


def _find_dtype(t: TensorProto) -> np.dtype[Any]:
    """Return the type of the elements of a constant as they are in a file."""
    if t.data_type in PACKED:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if t.data_type == BFLOAT else NUMPY[OF_ONNX[t.data_type]])


def _widen(t: TensorProto, array: Array) -> Array:
    """Return the elements of a constant in the type that graphs compute with."""
    return np.asarray(widen_bfloats(array)) if t.data_type == BFLOAT else array


def _name_element(code: int) -> str:
    """Return the text of an error for an unsupported element type."""
    name = TensorProto.DataType.Name(code) if code in TensorProto.DataType.values() else code
    return f"element type {str(name).lower()}; supported: {SUPPORTED}, bf16"
