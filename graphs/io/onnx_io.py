"""Reading of ONNX files into graphs, and writing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base import arguments, limits
from engine.base.aliases import Array
from engine.base.errors import EngineError, InputError, ModelError
from engine.graphs.io import amounts, keras_models, opsets, schemas, scopes, weights
from engine.graphs.io.message_reader import MessageReader
from engine.graphs.io.messages import (
    count_stored,
    find_code,
    make_content,
    make_default_info,
    make_tensor,
    make_value_info,
    write_texts,
)
from engine.graphs.io.packed_tables import unpack_tables
from engine.graphs.io.protos import (
    AttributeProto,
    DecodeError,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
)
from engine.graphs.io.provenance import read_provenance
from engine.graphs.ir.graph import (
    Graph,
    Node,
    Subgraph,
)
from engine.graphs.ir.units import check_integers
from engine.runtime import mapping
from engine.system import files
from engine.system.paths import METADATA, Paths

Model = str | os.PathLike[str] | bytes | ModelProto

MESSAGE_BYTES = 2**31 - 1  # of one message: the limit of the protobuf library
EXTERNAL_BYTES = 2**31 - 2**26  # of all initializers; larger ones go to a file
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
        UnsupportedOpError: an opset, attribute or function is not supported, or a scale or zero
            point does not fit its integers.
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
            MessageReader(source, path, whole).read_graph(proto)
            proto = convert.convert_opset(convert.inline_functions(proto, source), source)
            proto = convert.inline_undeclared(proto)
        reader = MessageReader(source, path, whole)
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
        check_integers(graph)
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
        raise InputError(f"model: expected a path, bytes or ModelProto; got {type(model)}")
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


# --- writing


def to_proto(graph: Graph) -> ModelProto:
    """Return the model of a graph, with all its initializers inside.

    Raises:
        ModelError: the type of an output is not known, or ONNX cannot hold an attribute.
    """
    graph = unpack_tables(graph)
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
    graph = unpack_tables(graph)
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
    for path, given in graphs.items():
        tensors, graph = [], unpack_tables(given)
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
