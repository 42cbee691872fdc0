"""Packed sequences of torch.nn.utils.rnn as padded ones, which have the same number of rows always.

    torch    one row for each element of a sequence, by time: as many rows as the lengths add up to
    here     one row for each place of the padded batch, by time: [time * batch, width]

Functions of each row alone do the same on both.  Layers that run over time read the lengths, as
`sequence_lens` of ONNX's LSTM, GRU and RNN, and `pad_packed_sequence` fills the places after them.
Its result is as long as the padded batch was, where torch's is as long as the longest sequence.

`engine.trainer.pytorch.functions` calls these rules while a module is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch.shorthand import Rule

_NOTE = "_edgegrad_packing"  # the attribute of `batch_sizes` that holds a Packing


@dataclass(frozen=True, slots=True)
class Packing:
    """The shape of what was packed.

    lengths: of the sequences, int64 [batch].  time, batch: sizes of the padded batch.
    """

    lengths: Any
    time: Any
    batch: Any

    def find_inside(self, torch: Any) -> Any:
        """Return which places are of a sequence: bool [time, batch]."""
        return torch.arange(self.time).unsqueeze(1) < self.lengths.unsqueeze(0)


class Listed(list[Any]):
    """The list of the values of a vector while a module is traced, when they are not known."""

    def __init__(self, vector: Any) -> None:
        super().__init__()
        self.vector = vector

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnsupportedOpError(
            "tolist() of a vector with a value for each row of the batch, which are not known "
            "while the module is exported; supported: lengths=vector.tolist() of "
            "pack_padded_sequence, and functions of the vector itself"
        )

    __iter__ = __len__ = __getitem__ = __add__ = __mul__ = __contains__ = __eq__ = _refuse
    __hash__ = None


def _read(batch_sizes: Any) -> Packing | None:
    return getattr(batch_sizes, _NOTE, None)


@contextlib.contextmanager
def without_values(torch: Any) -> Iterator[None]:
    """Let layers know the size of a packed batch, and modules list lengths, without values."""
    layer, fake = torch.nn.RNNBase, torch._subclasses.fake_tensor.FakeTensor
    wrapper = torch._subclasses.functional_tensor.FunctionalTensor
    before = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (layer, "get_expected_hidden_size"),
            (fake, "tolist"),
            (wrapper, "tolist"),
        )
    ]
    own_size = layer.get_expected_hidden_size

    def expect(self: Any, x: Any, batch_sizes: Any) -> Any:
        packing = _read(batch_sizes)
        if packing is None:
            return own_size(self, x, batch_sizes)
        directions = 2 if self.bidirectional else 1
        width = getattr(self, "proj_size", 0) or self.hidden_size
        return self.num_layers * directions, packing.batch, width

    def make_list(own: Any) -> Any:
        return lambda self: Listed(self) if _is_of_rows(self) else own(self)

    try:
        layer.get_expected_hidden_size = expect
        for owner, name, own in before[1:]:
            setattr(owner, name, make_list(own))
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


def _is_of_rows(x: Any) -> bool:
    """Return whether a tensor is a vector of integers, one for each row of the batch."""
    return x.dim() == 1 and not isinstance(x.shape[0], int) and not x.is_floating_point()


def _pack(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, lengths, batch_first = args
    x = x.transpose(0, 1) if batch_first else x
    packing = Packing(lengths, x.shape[0], x.shape[1])
    batch_sizes = packing.find_inside(torch).sum(1)
    setattr(batch_sizes, _NOTE, packing)
    return x.reshape(-1, *x.shape[2:]), batch_sizes


def _pad(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    data, batch_sizes, batch_first, padding, length = args
    packing = _read(batch_sizes)
    if packing is None:
        return None
    rest = data.shape[1:]
    x = data.reshape(packing.time, packing.batch, *rest)
    inside = packing.find_inside(torch).reshape(packing.time, packing.batch, *[1] * len(rest))
    x = torch.where(inside, x, padding)
    if isinstance(length, int) and isinstance(packing.time, int) and length > packing.time:
        more = x.new_full((length - packing.time, packing.batch, *rest), padding)
        x = torch.cat([x, more])
    return (x.transpose(0, 1) if batch_first else x), packing.lengths


def _read_size(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the size of the batch, which is the first of the sizes of its steps."""
    packing = _read(args[0])
    return packing.batch if packing is not None and args[1] == 0 else None


def _read_list(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    vector = args[0].vector if args and isinstance(args[0], Listed) else None
    return None if vector is None else vector.to(kwargs.get("dtype") or vector.dtype)


# --- layers

# Of each: the op, how many gates it has, the order of torch's gates in ONNX, further attributes.
_LAYERS: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any]]] = {
    "lstm": ("LSTM", 4, (0, 3, 1, 2), {}),
    "gru": ("GRU", 3, (1, 0, 2), {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", 1, (0,), {"activations": "Tanh"}),
    "rnn_relu": ("RNN", 1, (0,), {"activations": "Relu"}),
}


def run_layers(kind: str, torch: Any, args: Sequence[Any]) -> Any:
    """Return what `torch.lstm`, `torch.gru` or `torch.rnn_*` make of packed data.

    None if the data are not packed.

    Raises:
        UnsupportedOpError: the layers have projections.
    """
    packing = _read(args[1]) if len(args) > 1 else None
    if packing is None:
        return None
    data, _, first, weights, has_biases, layers, dropout, trains, is_both = args
    states = tuple(first) if kind == "lstm" else (first,)
    directions, count = (2 if is_both else 1), (4 if has_biases else 2)
    if len(weights) != count * layers * directions:
        raise UnsupportedOpError(
            "an LSTM with proj_size runs over a packed sequence; supported: packed sequences of "
            "layers without projections, and LSTMs with projections of padded batches"
        )
    x, made = data, []
    for layer in range(layers):
        begin = layer * directions
        own = weights[begin * count : (begin + directions) * count]
        before = [s[begin : begin + directions] for s in states]
        x, *after = _run_layer(torch, kind, x, packing, own, count, before)
        made.append(after)
        if dropout and layer + 1 < layers:
            x = torch.nn.functional.dropout(x, dropout, trains)
    return x, *(torch.cat(parts) for parts in zip(*made, strict=True))


def _run_layer(
    torch: Any, kind: str, data: Any, packing: Packing, weights: Sequence[Any], count: int,
    states: Sequence[Any],
) -> list[Any]:  # fmt: skip
    """Return the data after a layer, and its last states.

    data: [time * batch, inputs].  weights: of all directions, `count` for each: the weight of
        inputs, the recurrent weight and two biases, if there are biases.
    states: the first ones, [directions, batch, hidden].
    """
    op, gates, order, more = _LAYERS[kind]
    directions = len(weights) // count
    hidden = states[0].shape[2]

    def arrange(value: Any) -> Any:
        parts = value.chunk(gates)
        return torch.cat([parts[gate] for gate in order])

    def gather(place: int) -> Any:
        return torch.stack([arrange(w) for w in weights[place::count]])

    x = data.reshape(packing.time, packing.batch, data.shape[1])
    biases = torch.cat([gather(2), gather(3)], 1) if count == 4 else None
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else
                  "forward", **more}  # fmt: skip
    if "activations" in more:
        attributes["activations"] = [more["activations"]] * directions
    state = (directions, packing.batch, hidden)
    outputs = torch.onnx.ops.symbolic_multi_out(
        op, [x, gather(0), gather(1), biases, packing.lengths.to(torch.int32), *states], attributes,
        dtypes=[x.dtype] * (1 + len(states)),
        shapes=[(packing.time, directions, packing.batch, hidden), *[state] * len(states)],
    )  # fmt: skip
    y = outputs[0].transpose(1, 2).reshape(-1, directions * hidden)
    return [y, *outputs[1:]]


def make_layer_rule(kind: str) -> Rule:
    """Return the rule for one of the functions that run layers over packed data."""

    def run(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return run_layers(kind, torch, args)

    return run


RULES: dict[str, Rule] = {
    "_pack_padded_sequence": _pack, "_pad_packed_sequence": _pad, "__getitem__": _read_size,
    "as_tensor": _read_list,
    **{kind: make_layer_rule(kind) for kind in _LAYERS},
}  # fmt: skip
