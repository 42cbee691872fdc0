"""Functions of PyTorch that its exporter cannot write, as what they are short for.

    Before   F.embedding_bag(bags, weight, mode="sum")
    After    F.embedding(bags, weight).sum(1)

torch writes a bag of embeddings as a loop over bags with branches inside, a projection of an LSTM
not at all, dropouts of channels and of SELU as draws that evaluation does not turn off, and
the row of an embedding that is padding with a gradient.  While a module is traced, calls of these
functions become others that compute the same, with the same gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch import ctc, matrices, packing, shorthand, special, writes
from engine.trainer.pytorch.checks import FiniteChecks
from engine.trainer.pytorch.masked_rows import MaskedRows


def write_out_calls(torch: Any) -> Any:
    """Return the context in which calls become what they are short for."""

    class WrittenOut(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is Any here
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            made = masked.compute(function, args, given, self.compute)
            return self.compute(function, args, given) if made is None else made

        def compute(self, function: Any, args: Any, given: Any) -> Any:
            """Return what a call becomes, whose rows all count."""
            name = getattr(function, "__name__", "")
            if checks.is_answered(name, args):
                return checks.answer(name, args)
            if (answer := checks.answer_guard(torch, name, args)) is not None:
                return answer
            rule, value = _RULES.get(name), checks.find_value(name, args)
            if getattr(function, "__module__", "").startswith("torch.ao"):
                rule = None
            made = None if rule is None else rule(torch, args, given)
            made = function(*args, **given) if made is None else made
            if value is not None:
                checks.keep(made, value)
            return made

        def finish(self, value: Any) -> Any:
            """Return a value that leaves the module."""
            return masked.finish(value)

    checks, masked = FiniteChecks(), MaskedRows(torch)
    return WrittenOut()


def _write_embedding(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return rows of a table, without a gradient for `padding_idx`; None if there is none."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
    given: dict[str, Any] = {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False}
    given |= {**dict(zip(names, args, strict=False)), **kwargs}
    index, weight, padding = given["input"], given["weight"], given["padding_idx"]
    if index.is_floating_point():  # torch.embedding takes the table first, and -1 for no padding
        return None
    _check_options(given)
    if padding is None:
        return None
    rows = torch.nn.functional.embedding(index, weight)
    return torch.where((index == padding % weight.shape[0]).unsqueeze(-1), rows.detach(), rows)


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse options of embeddings that no graph of values and their gradients has.

    The first changes the table in each forward pass, the other divides gradients by how often a
    batch has an index: of a part of a batch, neither would be what it is of the whole.

    Raises:
        UnsupportedOpError: one of them is set.
    """
    table = f"an embedding of shape {list(given['weight'].shape)} has"
    if given["max_norm"] is not None:
        raise UnsupportedOpError(
            f"{table} max_norm={given['max_norm']}: its forward pass writes to the table; "
            "supported: tables that updates alone change. Leave max_norm out, and scale the rows "
            "that were read: rows / (rows.norm(dim=-1, keepdim=True) / max_norm).clamp(min=1)"
        )
    if given["scale_grad_by_freq"]:
        raise UnsupportedOpError(
            f"{table} scale_grad_by_freq=True: its gradients depend on how often a batch has each "
            "index; supported: scale_grad_by_freq=False"
        )


_BAGS = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip


def _write_embedding_bag(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `torch.nn.functional.embedding_bag` does; None for what is not known here.

    Bags are the rows of a matrix of indices [bags, length], or the runs of a list of indices
    [length] that begin at `offsets` [bags].  The result is [bags, width].
    """
    given: dict[str, Any] = {"offsets": None, "max_norm": None, "mode": "mean"}
    given |= {"scale_grad_by_freq": False, "per_sample_weights": None, "include_last_offset": False}
    given |= {"padding_idx": None, **dict(zip(_BAGS, args, strict=False)), **kwargs}
    index, weight = given["input"], given["weight"]
    if index.dim() not in (1, 2) or (index.dim() == 1) == (given["offsets"] is None):
        return None
    if index.dtype not in (torch.int32, torch.int64):  # the two first arguments were once swapped
        return None
    _check_options(given)
    rows, padding = torch.nn.functional.embedding(index, weight), given["padding_idx"]
    counted = torch.ones_like(index, dtype=weight.dtype)
    if padding is not None:
        counted = (index != padding % weight.shape[0]).to(weight.dtype)
    factor = given["per_sample_weights"]
    factor = counted if factor is None else counted * factor
    if given["mode"] == "max":  # padding is less than everything else
        lowest = torch.finfo(weight.dtype).min
        rows = torch.where(counted.unsqueeze(-1) > 0, rows, lowest)
    elif padding is not None or given["per_sample_weights"] is not None:
        rows = rows * factor.unsqueeze(-1)
    if index.dim() == 2:
        return _reduce_rows(torch, rows, counted, given["mode"])
    offsets = given["offsets"]
    offsets = offsets[:-1] if given["include_last_offset"] else offsets
    return _reduce_runs(torch, rows, counted, offsets, given["mode"])


def _reduce_rows(torch: Any, rows: Any, counted: Any, mode: str) -> Any:
    """Reduce bags of one length: rows [bags, length, width], counted [bags, length]."""
    if mode == "sum":
        return rows.sum(1)
    count = counted.sum(1, keepdim=True)
    if mode == "mean":
        return rows.sum(1) / count.clamp(min=1)
    return torch.where(count > 0, rows.amax(1), 0.0)


def _reduce_runs(torch: Any, rows: Any, counted: Any, offsets: Any, mode: str) -> Any:
    """Reduce bags that begin at offsets [bags]: rows [length, width], counted [length].

    The bag of an index is how many bags have begun before it.
    """
    length, bags = rows.shape[0], offsets.shape[0]
    begun = torch.zeros(length + 1, dtype=torch.int64).scatter_add(
        0, offsets.to(torch.int64), torch.ones_like(offsets, dtype=torch.int64)
    )
    bag = begun.cumsum(0)[:length] - 1
    where, empty = bag.unsqueeze(-1).expand_as(rows), rows.new_zeros(bags, rows.shape[1])
    if mode == "sum":
        return empty.scatter_add(0, where, rows)
    count = rows.new_zeros(bags).scatter_add(0, bag, counted).unsqueeze(-1)
    if mode == "mean":
        return empty.scatter_add(0, where, rows) / count.clamp(min=1)
    lowest = torch.full_like(empty, torch.finfo(rows.dtype).min)
    most = lowest.scatter_reduce(0, where, rows, "amax", include_self=True)
    return torch.where(count > 0, most, 0.0)


def _write_lstm(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `torch.lstm` does with projections; None for an LSTM without them.

    The cells of a projected LSTM read r = P (o tanh(c)) of the step before.  As W r is (W P) times
    o tanh(c), an LSTM without projection that has the recurrent weight W P has the same cells; its
    outputs are projected afterwards.  The product of W and a first state is added to the first
    input.

    Source: Sak, Senior and Beaufays, "Long short-term memory recurrent neural network architectures
    for large scale acoustic modeling", 2014.
    """
    if kwargs or len(args) != 9 or not isinstance(args[1], tuple | list):
        return packing.run_layers("lstm", torch, args)
    x, (h0, c0), weights, has_biases, layers, dropout, trains, is_both, batch_first = args
    count = 5 if has_biases else 3
    directions = 2 if is_both else 1
    if len(weights) != count * layers * directions:  # no projection
        return None
    x = x.transpose(0, 1) if batch_first else x
    hidden, cells = [], []
    parts = _split_weights(weights, count)
    for layer in range(layers):
        made = []
        for direction in range(directions):
            at = layer * directions + direction
            y, h, c = _run_projected(
                torch, x, h0[at], c0[at], next(parts), has_biases, direction == 1
            )
            made.append(y)
            hidden.append(h)
            cells.append(c)
        x = torch.cat(made, -1) if is_both else made[0]
        if dropout and layer + 1 < layers:
            x = torch.nn.functional.dropout(x, dropout, trains)
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(hidden), torch.stack(cells)


def _split_weights(weights: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    """Return the weights of each layer and direction."""
    return (weights[k : k + count] for k in range(0, len(weights), count))


def _run_projected(
    torch: Any, x: Any, h0: Any, c0: Any, weights: Sequence[Any], has_biases: bool, is_reverse: bool
) -> tuple[Any, Any, Any]:
    """Return outputs and last states of a layer in one direction.

    x: [length, batch, inputs].  h0, c0: [batch, projected], [batch, hidden].
    """
    w, u, *biases, p = weights
    x = x.flip(0) if is_reverse else x
    # Inputs that are the first state at the first step and 0 later.
    first = torch.cat([h0.unsqueeze(0), h0.new_zeros(1, *h0.shape).expand(x.shape[0] - 1, -1, -1)])
    x, w = torch.cat([x, first], -1), torch.cat([w, u], 1)
    states = (torch.zeros_like(c0).unsqueeze(0), c0.unsqueeze(0))
    flat = [w, u @ p, *biases]
    y, _, c = torch.lstm(x, states, flat, has_biases, 1, 0.0, False, False, False)
    y = torch.nn.functional.linear(y, p)
    last = y[-1]
    return (y.flip(0) if is_reverse else y), last, c[0]


def _draw_channels(torch: Any, x: Any, is_batched: bool, p: float) -> Any:
    """Return the dropout of a 1 for each channel of a batch: 0, or 1 / (1 - p); 1 in evaluation."""
    if not is_batched:
        return _draw_channels(torch, x.unsqueeze(0), True, p).squeeze(0)
    ones = x.new_ones(*x.shape[:2], *[1] * (x.dim() - 2))
    return torch.nn.functional.dropout(ones, p, True)


def _read_dropout_options(args: Sequence[Any], kwargs: Mapping[str, Any], trains: bool) -> Any:
    """Return the arguments of a dropout: x, p and whether it is in place; None if it drops nothing.

    trains: the default of its argument `training`, which torch's own functions call `train`.
    """
    given = {"p": 0.5, "training": trains, "inplace": False}
    given |= {**dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **kwargs}
    if not given.get("train", given["training"]) or not 0 < given["p"] < 1:
        return None
    return given["input"], given["p"], given["inplace"]


def _make_feature_dropout(dims: int | None = None, in_place: bool = False) -> Any:
    """Return the rule for dropouts of channels; dims: axes of an input without a batch."""

    def write_dropout(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        options = _read_dropout_options(args, kwargs, trains=True)
        if options is None:
            return None
        x, p, inplace = options
        mask = _draw_channels(torch, x, x.dim() != dims, p)
        return x.mul_(mask) if inplace or in_place else x * mask

    return write_dropout


def _make_alpha_dropout(by_channel: bool, in_place: bool = False) -> Any:
    """Return the rule for dropouts that keep mean and variance of what SELU makes.

    Dropped values become -alpha, of SELU, and then all values x become a x + b.  Of d, the dropout
    of a 1, this is c d x + alpha c (d - 1), c = a (1 - p), which is x in evaluation if c d is 1
    there.

    Source: Klambauer et al., "Self-normalizing neural networks", 2017.
    """
    alpha = 1.7580993408473766

    def write_dropout(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        options = _read_dropout_options(args, kwargs, trains=False)
        if options is None:
            return None
        x, p, inplace = options
        if by_channel:
            d = _draw_channels(torch, x, True, p)
        else:
            d = torch.nn.functional.dropout(torch.ones_like(x), p, True)
        c = (1 - p) / ((alpha * alpha * p + 1) * (1 - p)) ** 0.5
        y = x * torch.where(d == 1, 1.0, c * d) + alpha * c * (d - 1)
        return x.copy_(y) if inplace or in_place else y

    return write_dropout


def _make_in_place(rule: shorthand.Rule) -> shorthand.Rule:
    """Return the rule for the form of a function that writes its result to its first argument."""

    def write(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        made = rule(torch, args, kwargs)
        return None if made is None else args[0].copy_(made)

    return write


_RULES: dict[str, shorthand.Rule] = {
    **shorthand.RULES, **special.RULES, **packing.RULES, **matrices.RULES, **ctc.RULES,
    **writes.RULES,
    **{f"{name}_": _make_in_place(special.RULES[name]) for name in ("digamma", "erfinv")},
    "put_": _make_in_place(shorthand.RULES["put"]),
    "embedding": _write_embedding, "embedding_bag": _write_embedding_bag, "lstm": _write_lstm,
    "dropout1d": _make_feature_dropout(2), "dropout2d": _make_feature_dropout(),
    "dropout3d": _make_feature_dropout(4), "feature_dropout": _make_feature_dropout(),
    "feature_dropout_": _make_feature_dropout(in_place=True),
    "alpha_dropout": _make_alpha_dropout(False),
    "alpha_dropout_": _make_alpha_dropout(False, in_place=True),
    "feature_alpha_dropout": _make_alpha_dropout(True),
    "feature_alpha_dropout_": _make_alpha_dropout(True, in_place=True),
}  # fmt: skip
