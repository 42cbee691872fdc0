"""Changes of ONNX messages: of any field, and of how nodes hang together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from tests.fuzz import octets
from tests.support.malformed import NUMBERS, OPSETS, REALS

Message = Any  # of protobuf, which has no types
_CODES = range(-1, 40)  # of element types, attribute types, places of data


def inner(message: Message) -> Iterator[Message]:
    """A message and all that are in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if field.is_repeated else (value,):
            yield from inner(each)


class Changes:
    """Changes of models.

    parts: messages of many models by their type; they are put into others.
    """

    def __init__(self, models: Sequence[ModelProto]) -> None:
        self.parts: dict[str, list[Message]] = {}
        for model in models:
            for part in inner(model):
                if not isinstance(part, ModelProto):
                    self.parts.setdefault(part.DESCRIPTOR.name, []).append(part)

    def change(self, model: ModelProto, rng: random.Random) -> None:
        """Change one thing of a model, in place."""
        graphs = [m for m in inner(model) if isinstance(m, GraphProto)]
        if graphs and rng.random() < 0.45:
            self.rewire(rng.choice(graphs), graphs, rng)
        elif model.opset_import and rng.random() < 0.05:
            versions = (*OPSETS, *range(1, 13), *NUMBERS)
            rng.choice(model.opset_import).version = rng.choice(versions)
        else:
            self.change_field(model, rng)

    # --- nodes

    def rewire(self, graph: GraphProto, graphs: Sequence[GraphProto], rng: random.Random) -> None:
        """Drop, double, swap or move nodes, or let them read or make other values."""
        nodes = graph.node
        names = [name for g in graphs for name in _values(g)] or ["x"]
        if not nodes:
            nodes.add().CopyFrom(self.part("NodeProto", rng))
            return
        node = rng.choice(nodes)
        match rng.randrange(12):
            case 0:
                nodes.remove(node)
            case 1:
                nodes.add().CopyFrom(node)
            case 2:
                order = list(nodes)
                rng.shuffle(order)
                _replace(nodes, order)
            case 3:
                node.op_type = self.part("NodeProto", rng).op_type
            case 4 if node.output:
                node.output[rng.randrange(len(node.output))] = rng.choice(names)
            case 5:
                node.input.append(rng.choice(names))
            case 6 if node.input:
                del node.input[rng.randrange(len(node.input)) :]
            case 7 if graph.output:
                rng.choice(graph.output).name = rng.choice(names)
            case 8:
                taken: NodeProto = self.part("NodeProto", rng)
                node.op_type, node.domain = taken.op_type, taken.domain
                _replace(node.attribute, taken.attribute)
            case 9:
                graph.output.add(name=rng.choice(names))
            case _ if node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice((*names, *names, ""))

    def part(self, kind: str, rng: random.Random) -> Message:
        """A message of a type out of any model."""
        return rng.choice(self.parts[kind])

    # --- fields

    def change_field(self, model: ModelProto, rng: random.Random) -> None:
        """Change any field of any message of a model."""
        message = rng.choice(list(inner(model)))
        given = [field for field, _ in message.ListFields()]
        fields = given if given and rng.random() < 0.75 else list(message.DESCRIPTOR.fields)
        field = rng.choice(fields)
        if rng.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None:
            self._change_messages(message, field, rng)
        elif field.is_repeated:
            listed = list(getattr(message, field.name))
            values = _change_list(listed, lambda old: _scalar(field, old, model, rng), field, rng)
            message.ClearField(field.name)
            getattr(message, field.name).extend(values)
        else:
            old = getattr(message, field.name)
            setattr(message, field.name, _scalar(field, old, model, rng))

    def _change_messages(self, message: Message, field: Any, rng: random.Random) -> None:
        known = self.parts.get(field.message_type.name)
        if not field.is_repeated:
            if known and rng.random() < 0.7:
                getattr(message, field.name).CopyFrom(rng.choice(known))
            else:
                message.ClearField(field.name)
            return
        actual_value = getattr(message, field.name)
        match rng.randrange(5):
            case 0 if actual_value:
                del actual_value[rng.randrange(len(actual_value))]
            case 1 if actual_value:
                actual_value.add().CopyFrom(rng.choice(actual_value))
            case 2 if actual_value:
                order = list(actual_value)
                rng.shuffle(order)
                _replace(actual_value, order)
            case 3 if actual_value and known:
                actual_value[rng.randrange(len(actual_value))].CopyFrom(rng.choice(known))
            case _ if known:
                actual_value.add().CopyFrom(rng.choice(known))
            case _:
                actual_value.add()


def _replace(repeated: Any, messages: Any) -> None:
    """Put other messages into a repeated field."""
    copies = [type(m).FromString(m.SerializePartialToString()) for m in messages]
    del repeated[:]
    repeated.extend(copies)


def _values(graph: GraphProto) -> list[str]:
    """The names of the values of a graph."""
    made = [name for node in graph.node for name in (*node.input, *node.output)]
    return [*made, *(v.name for v in (*graph.input, *graph.initializer))]


def _change_list(found: list[Any], fresh: Any, field: Any, rng: random.Random) -> list[Any]:
    at = rng.randrange(len(found) + 1)
    match rng.randrange(5):
        case 0:
            return found[:at] + found[at + 1 :]
        case 1:
            return [*found, *found[:1]]
        case 2:
            return [*found[:at], fresh(field.default_value or _zero(field)), *found[at:]]
        case 3 if at < len(found):
            return [*found[:at], fresh(found[at]), *found[at + 1 :]]
    return rng.sample(found, len(found))


def _zero(field: Any) -> Any:
    return {field.TYPE_STRING: "", field.TYPE_BYTES: b""}.get(field.type, 0)


def _scalar(field: Any, old: Any, model: ModelProto, rng: random.Random) -> Any:
    """Return another value for a field that is not a message."""
    if field.type == field.TYPE_STRING:
        if field.name == "op_type":
            names = [m.op_type for m in inner(model) if isinstance(m, NodeProto)]
        else:
            names = [n for m in inner(model) if isinstance(m, GraphProto) for n in _values(m)]
        texts = [text for text in octets.NAMES if text != "\ud800"]
        return rng.choice((*names, *names, *texts, f"{old}x")) if names else rng.choice(texts)
    if field.type == field.TYPE_BYTES:
        data = bytearray(old)
        octets.change(data, rng)
        return bytes(data)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(REALS)
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    codes: Mapping[int, tuple[int, int]] = {
        field.TYPE_INT32: (-(2**31), 2**31 - 1), field.TYPE_INT64: (-(2**63), 2**63 - 1),
        field.TYPE_UINT64: (0, 2**64 - 1),
    }  # fmt: skip
    least, most = codes[field.type]
    value = rng.choice(_CODES) if field.name.endswith("_type") else rng.choice((*NUMBERS, old + 1))
    return min(max(value, least), most)
