"""Reading of ONNX files into graphs, and writing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from engine.base import arguments, limits
from engine.base.element_types import NUMPY, OF_ONNX, ONNX_CODE, SUPPORTED, widen_bfloats
from engine.base.errors import DTypeError, EngineError, InputError, ModelError, UnsupportedOpError
from engine.graphs.io import amounts, keras_models, opsets, schemas, scopes, weights
from engine.graphs.io.messages import (
    BFLOAT,
    IN_GRAPHS,
    PACKED,
    check_packed,
    count_stored,
    find_code,
    fold_strings,
    make_content,
    make_default_info,
    make_initializers,
    make_tensor,
    make_value_info,
    read_text_type,
    read_texts,
    read_type,
    read_values,
    unpack,
    write_texts,
)
from engine.graphs.io.protos import (
    AttributeProto,
    DecodeError,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)
from engine.graphs.io.provenance import read_provenance
from engine.graphs.ir.graph import (
    TYPE_ATTRIBUTES,
    Graph,
    Node,
    Subgraph,
    check_rank,
)
from engine.kernels.vocabulary.op import Array, TensorType
from engine.runtime import mapping
from engine.system import files
from engine.system.paths import METADATA, Paths

Model = str | os.PathLike[str] | bytes | ModelProto

MESSAGE_BYTES = 2**31 - 1  # of one message: the limit of the protobuf library
EXTERNAL_BYTES = 2**31 - 2**26  # of all initializers; larger ones go to a file
MAPPED_BYTES = 4096  # from this size on external data stays in its file
_MOST = (1 << 63) - 1  # of an offset or length
_EXTERNAL_MIN = 1024  # least bytes of a tensor in that file
_ALIGN = 64  # bytes: alignment of tensors in it

_OTHER_FORMATS = {b"ORTM": "an ORT format model", b"ODTC": "a checkpoint"}


# --- reading


def load(model: Model, data: mapping.Content | None = None) -> Graph:
    """Read a model from a path, from bytes or from a `ModelProto`, which is not changed.

    Functions are inlined, and unsupported opsets converted (`convert`).  The constants of a file
    without other weights become initializers (`make_initializers`).  Initializers in external files
    are read from the folder of the model's path.  Initializers in a file of at least
    `mapping.LARGE` bytes stay in the file, which is mapped, so it must not be overwritten in place
    while the graph is used.  NumPy has no bfloat16: values of this type become float32 and are
    listed in the metadata `files.BFLOATS`.

    data: the content of the file at the path, if the caller has read it.

    Raises:
        FileError: the file, or an external data file, is missing, unreadable or too short.
        ModelError: not an ONNX model, or a malformed one.
        DTypeError: the element type of an input or initializer is not supported.
        UnsupportedOpError: an opset, attribute or function is not supported.
        LimitError: for the bytes of the file, its nodes, or the nesting depth.
    """
    proto, source, path, whole = _parse(model, data)
    if not proto.HasField("graph"):
        raise ModelError(f"{source}: an ONNX model without a graph: empty or truncated")
    amounts.check(proto, source)
    try:
        scopes.check(proto, source)
        exported = proto = opsets.without_stand_ins(proto)
        if not opsets.is_read_as_is(proto):
            from engine.graphs.io import convert

            convert.find_opset(proto, source)
            # A malformed model can crash the onnx package.
            _MessageReader(source, path, whole).read_graph(proto)
            proto = convert.convert_opset(convert.inline_functions(proto, source), source)
            proto = convert.inline_undeclared(proto)
        reader = _MessageReader(source, path, whole)
        graph = reader.read_graph(proto)
        graph.external = tuple(reader.places)
        if path is not None and mapping.STAMPS in graph.metadata:
            mapping.check_stamps(graph.metadata[mapping.STAMPS], path)
        origin = read_provenance(exported.graph, graph.producer, graph.initializers)
        graph.gone, graph.notes = origin.gone, origin.notes
        graph.parameters = origin.parameters
        graph.buffers = (*origin.buffers, *keras_models.list_constants(graph))
        if origin.paths != Paths():
            graph.metadata.setdefault(METADATA, origin.paths.write())
        return keras_models.separate_equal(graph)
    except RecursionError as error:
        raise ModelError(f"{source}: subgraphs are deeper than Python can follow") from error
    except UnicodeDecodeError as error:  # older protobufs decode texts when they are read
        raise ModelError(f"{source}: a name or text is not UTF-8: {error}") from error


def _parse(
    model: Model, data: mapping.Content | None
) -> tuple[ModelProto, str, str | None, mapping.Content | None]:
    """Return the message of a model, its name in errors, its path, and the file with its large
    weights.

    External data are beside the path.
    """
    if isinstance(model, ModelProto):
        return model, "model", None, None
    if isinstance(model, bytes | bytearray | memoryview):
        octets = arguments.check_bytes("model", model)
        limits.check("FILE_BYTES", octets.nbytes, "model bytes")
        whole = bytes(octets)
        return _decode(whole, "model bytes"), "model bytes", None, whole
    if not isinstance(model, str | os.PathLike):
        raise InputError(f"model: expected a path, bytes or ModelProto; found {type(model)}")
    path = arguments.check_path("model", model)
    data = mapping.read(path, "model") if data is None else data
    return _decode(data, path), path, path, data


def _decode(data: mapping.Content, source: str) -> ModelProto:
    if not data:
        raise ModelError(f"{source}: empty; expected an ONNX model")
    if data[4:8] in _OTHER_FORMATS:
        raise ModelError(f"{source}: this is {_OTHER_FORMATS[data[4:8]]}; expected an ONNX model")
    if len(data) > MESSAGE_BYTES:
        raise ModelError(
            f"{source}: {len(data)} bytes; a model file holds up to {MESSAGE_BYTES}: store its "
            f"weights as external data"
        )
    try:
        if len(data) >= mapping.LARGE:
            with contextlib.suppress(ValueError):  # protobuf's message says what is wrong
                model = _parse_message(weights.make_short_message(data, nodes=True))
                if not opsets.is_read_as_is(model):  # the onnx package wants tensors in nodes whole
                    model = _parse_message(weights.make_short_message(data, nodes=False))
                return model
        return _parse_message(data[:])
    except DecodeError as error:
        raise ModelError(
            f"{source}: not an ONNX model, or corrupt or truncated ({len(data)} bytes): {error}"
        ) from error


def _parse_message(data: bytes) -> ModelProto:
    model = ModelProto()
    model.ParseFromString(data)
    return model


class _MessageReader:
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
            raise UnsupportedOpError(f"{self.source}: sparse initializer {name!r}")
        nodes = [self.read_node(n) for n in proto.node]
        outputs = [o.name for o in proto.output]
        out = Graph(proto.name or "graph", {}, outputs, {}, nodes, self.opsets)
        for what, values in (
            ("initializer", proto.initializer), ("input", proto.input), ("output", proto.output)
        ):  # fmt: skip
            if any(not v.name for v in values):
                raise ModelError(f"{self.source}: an {what} of {out.name!r} has no name")
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
        packed = [t.name for t in proto.initializer if t.data_type in PACKED]
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
            f"{where}: attribute {a.name!r} of type {schemas.name_kind(a.type)}"
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
            raise ModelError(f"{where}: a shape of {list(t.dims)}")
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
            raise ModelError(f"{where} is external data in {str(location)!r}, not beside the model")
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
                f"{where}: {length} bytes at {offset} of external data for {nbytes} bytes"
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


# --- writing


def to_proto(graph: Graph) -> ModelProto:
    """Return the model of a graph, with all its initializers inside.

    Raises:
        ModelError: the type of an output is not known, or ONNX cannot hold an attribute.
    """
    return _make_model(graph, [make_tensor(name, a) for name, a in graph.initializers.items()])


def to_bytes(graph: Graph) -> bytes:
    """Return the serialised model of a graph, with all its initializers inside.

    Raises:
        ModelError: see `to_proto`; or the message would exceed the limit of 2 GiB.
    """
    size = sum(a.nbytes for a in graph.initializers.values())
    if size >= EXTERNAL_BYTES:
        raise ModelError(
            f"{graph.name}: {size} bytes of initializers do not fit into one ONNX message; save "
            f"the model to a path, which stores them as external data"
        )
    data: bytes = to_proto(graph).SerializeToString()
    return data


def needs_external_data(graph: Graph) -> bool:
    """Return whether the initializers are too large for one message."""
    return count_bytes(graph) >= EXTERNAL_BYTES


def compute_digest(graph: Graph) -> str:
    """Return the digest of the content of a graph's model file, wherever its values are stored.

    Raises:
        ModelError: see `to_proto`.
    """
    bare = [_make_external_tensor(name, a, "", 0) for name, a in graph.initializers.items()]
    hashed = hashlib.sha256(_make_model(graph, bare).SerializeToString())
    for array in graph.initializers.values():
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def save(graph: Graph, path: str | os.PathLike[str], defaults: Sequence[str] = ()) -> None:
    """Write a model file.  If writing fails, the old file is still there.

    If the initializers have `EXTERNAL_BYTES` or more, the large ones go to `<path>.data`.

    defaults: initializers that also become inputs, with these values by default.

    Raises:
        ModelError: see `to_proto`.
        FileError: a file could not be written.
    """
    name = arguments.check_path("model", path)
    if not needs_external_data(graph):
        files.write(
            name, weights.list_pieces(_make_model(graph, [], defaults), graph.initializers.items())
        )
    else:
        save_sharing({name: graph}, name + ".data", defaults)


def save_sharing(
    graphs: Mapping[str, Graph], data: str, defaults: Sequence[str] = (), home: str | None = None
) -> set[str]:
    """Write model files that share one file with their larger initializers, beside them.

    An array that several graphs share is written once, directly from memory or from the file that
    it is mapped from.  Arrays that are already in external data in the folder, or in a folder
    inside it, are not written again: the models refer to them.  After a crash there are the old
    models, the new ones, or none.

    graphs: the graphs by the paths of the models.  data: the path of the file, in the same folder,
        which is not written if it would be empty. defaults: see `save`. home: the folder of the
        models later, if it is another one.

    Returns the files that the models refer to, by their paths from the folder.

    Raises:
        ModelError: see `to_proto`.
        FileError: a file could not be written.
    """
    offsets: dict[object, tuple[str, int]] = {}  # by the memory of an array
    pieces: list[bytes | memoryview] = []
    folder, own = home or os.path.dirname(data), os.path.basename(data)
    messages: dict[str, bytes] = {}
    top = 0
    for path, graph in graphs.items():
        tensors = []
        for name, array in graph.initializers.items():
            if array.nbytes < _EXTERNAL_MIN:
                tensors.append(make_tensor(name, array))
                continue
            key = int(array.ctypes.data), array.dtype.str, array.shape, array.strides
            if key not in offsets:
                known = mapping.place_below(array, folder)
                offsets[key] = known or (own, top)
            if offsets[key] == (own, top):
                size = count_stored(array)
                padding = -size % _ALIGN
                pieces += [make_content(array), bytes(padding)]
                top += size + padding
            tensors.append(_make_external_tensor(name, array, *offsets[key]))
        messages[path] = _make_model(graph, tensors, defaults).SerializeToString()
    contents: dict[str, Sequence[bytes | memoryview]] = {data: pieces} if pieces else {}
    contents |= {path: [message] for path, message in messages.items()}
    for path in contents:
        files.resolve_target(path)
    with files.staging(os.path.dirname(data)) as stage:
        moves = [(os.path.join(stage, os.path.basename(path)), path) for path in contents]
        for source, path in moves:
            files.write(source, contents[path])
        files.replace_together(moves, keys=list(messages))
    return {location for location, _ in offsets.values()}


def count_bytes(graph: Graph) -> int:
    """Return the bytes of all initializers."""
    return sum(map(count_stored, graph.initializers.values()))


def list_stamps(graphs: Iterable[Graph], folder: str) -> str:
    """Return the current stamps of the files in a folder from which arrays are mapped, or "".

    If the metadata of a model hold this under `mapping.STAMPS`, the model is refused once the
    content of one of these files changes.  See `mapping.compute_stamp`.

    Raises:
        FileError: such a file cannot be read.
    """
    arrays = (a for g in graphs for a in g.initializers.values() if a.nbytes >= _EXTERNAL_MIN)
    places = {place[0] for a in arrays if (place := mapping.place_below(a, folder))}
    stamp_of = {name: mapping.compute_stamp(os.path.join(folder, name)) for name in sorted(places)}
    return json.dumps(stamp_of) if stamp_of else ""


def list_external_files(path: str) -> set[str]:
    """Return the paths, relative to its folder, of the files that a model refers to."""
    if not os.path.isfile(path):
        return set()
    with contextlib.suppress(EngineError):
        proto = _parse(path, None)[0]
        entries = (e for t in proto.graph.initializer for e in t.external_data)
        return {e.value for e in entries if e.key == "location"}
    return set()


def _make_external_tensor(name: str, array: Array, location: str, offset: int) -> TensorProto:
    """Return a tensor whose bytes are in another file."""
    t = TensorProto(name=name, data_type=find_code(array), dims=array.shape)
    t.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", count_stored(array))):
        t.external_data.add(key=key, value=str(value))
    return t


def make_node(node: Node, opsets: Mapping[str, int]) -> NodeProto:
    """Return the message of a node.

    Raises:
        ModelError: ONNX cannot hold an attribute.
    """
    schema = schemas.list_attribute_codes(node, opsets)
    out = NodeProto(op_type=node.op, domain=node.domain, name=node.name)
    out.input.extend(node.inputs)
    out.output.extend(node.outputs)
    out.attribute.extend(_make_attribute(node, k, v, schema.get(k)) for k, v in node.attrs.items())
    return out


def _make_model(
    graph: Graph, tensors: list[TensorProto], defaults: Sequence[str] = ()
) -> ModelProto:
    graph = write_texts(graph) if graph.text_inputs else graph
    made = {o for n in graph.nodes for o in n.outputs if o} - set(graph.outputs)
    for name in graph.outputs:
        if name not in graph.types and name not in graph.inputs:
            raise ModelError(f"{graph.name}: the type of output {name!r} is not known")
    proto = GraphProto(name=graph.name)
    proto.node.extend(make_node(n, graph.opsets) for n in graph.nodes)
    proto.initializer.extend(tensors)
    proto.input.extend(
        make_value_info(n, t, n in graph.text_inputs) for n, t in graph.inputs.items()
    )
    proto.input.extend(make_default_info(n, graph.initializers[n]) for n in defaults)
    proto.output.extend(
        make_value_info(n, graph.types.get(n) or graph.inputs[n]) for n in graph.outputs
    )
    proto.value_info.extend(
        make_value_info(name, t) for name, t in graph.types.items() if name in made
    )
    model = ModelProto(ir_version=graph.ir_version, graph=proto, doc_string=graph.doc)
    model.producer_name, model.producer_version = graph.producer, graph.producer_version
    domains = sorted({n.domain for n in graph.nodes} - graph.opsets.keys())
    for domain, version in {**graph.opsets, **dict.fromkeys(domains, 1)}.items():
        model.opset_import.add(domain=domain, version=version)
    for key, text in graph.metadata.items():
        model.metadata_props.add(key=key, value=text)
    add_stand_ins(model)
    return model


def add_stand_ins(model: ModelProto) -> None:
    """Add functions that define ops of ours for other runtimes, where nodes need them.

    Before   z = engine::StopGradient(y)
    After    the same, and   engine::StopGradient(input_0) => (output): output = Identity(input_0)
    """
    used = {(n.domain, n.op_type): len(n.input) for n in model.graph.node}
    versions = [o for o in model.opset_import if o.domain in ("", "ai.onnx")]
    for (domain, op), count in sorted(used.items()):
        if not opsets.passes(domain, op):
            continue
        function = model.functions.add(domain=domain, name=op, output=["output"])
        function.input.extend(f"input_{i}" for i in range(count))
        function.opset_import.extend(versions)
        function.node.add(op_type="Identity", input=["input_0"], output=["output"])


def _make_attribute(node: Node, name: str, value: Any, kind: Any) -> AttributeProto:
    if isinstance(value, Subgraph):
        return AttributeProto(name=name, type=AttributeProto.GRAPH, g=value.proto)
    if isinstance(value, np.ndarray):
        return AttributeProto(name=name, type=AttributeProto.TENSOR, t=make_tensor("", value))
    if kind is None and isinstance(value, list | tuple) and not value:
        kind = AttributeProto.INTS
    value = float(value) if kind == AttributeProto.FLOAT else value
    from onnx import helper

    try:
        return helper.make_attribute(name, value, attr_type=kind)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{node.op} {node.name!r}: attribute {name}={value!r}: {error}") from None
