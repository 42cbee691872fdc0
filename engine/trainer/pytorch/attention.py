"""Attention of queries that may read no key, as in batches that are padded on the left.

    Before   p = Softmax(s);                                          y = MatMul(p, v)
    After    e = Equal(ReduceMax(s), -inf);
             p = Where(e, 0, Softmax(Where(e, 0, s)));                y = MatMul(p, v)

s = q k + mask.  `scaled_dot_product_attention` returns zeros for a query whose keys are all masked.
torch's exporter writes masks of floats without this, which makes NaN, and masks of bools by the
least number instead of -inf, which makes the mean of all values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SCOPES = "pkg.torch.onnx.class_hierarchy"
_FUNCTION = "aten.scaled_dot_product_attention"


def read_no_masked_key(graph: Any) -> None:
    """Let attentions of an exported graph return zeros where all keys are masked, in place."""
    for node in list(graph):
        if node.op_type != "Softmax" or not _is_of_attention(node):
            continue
        biased = node.inputs[0].producer()
        if biased is None or biased.op_type != "Add":
            continue
        maker = biased.inputs[1].producer()
        if maker is None or not _is_of_attention(maker):
            _guard(graph, node)
        elif maker.op_type == "Where" and _has_other_maker(maker.inputs[0]):  # of bools
            maker.replace_input_with(2, _add_constant(graph, maker, -np.inf))
            _guard(graph, node)
        # Other masks of the attention itself are causal, and leave a key to each query.


def _is_of_attention(node: Any) -> bool:
    return _FUNCTION in node.metadata_props.get(_SCOPES, "")


def _has_other_maker(value: Any) -> bool:
    maker = value.producer()
    return maker is None or not _is_of_attention(maker)


def _guard(graph: Any, softmax: Any) -> None:
    """Let the softmax of a query without keys be of zeros, and its probabilities 0."""
    (scores,), (p,) = softmax.inputs, softmax.outputs
    zero = _add_constant(graph, softmax, 0.0)
    least = _add_constant(graph, softmax, -np.inf)
    last = _add_constant(graph, softmax, np.array([-1]))
    shape = None if p.shape is None else (*p.shape[:-1], 1)

    def add(op: str, inputs: list[Any], title: str, dtype: Any, shape: Any) -> Any:
        node = onnx_ir.node(op, inputs=inputs, name=f"{softmax.name}_{title}")
        node.metadata_props.update(softmax.metadata_props)
        (value,) = node.outputs
        value.name, value.type = f"{p.name}_{title}", onnx_ir.TensorType(dtype)
        value.shape = None if shape is None else onnx_ir.Shape(shape)
        made.append(node)
        return value

    import onnx_ir

    made: list[Any] = []
    dtype, readers = p.dtype or onnx_ir.DataType.FLOAT, list(p.uses())
    top = add("ReduceMax", [scores, last], "top", dtype, shape)
    empty = add("Equal", [top, least], "empty", onnx_ir.DataType.BOOL, shape)
    open_ = add("Where", [empty, zero, scores], "open", dtype, p.shape)
    graph.insert_before(softmax, made)
    softmax.replace_input_with(0, open_)
    made.clear()
    guarded = add("Where", [empty, zero, p], "guarded", dtype, p.shape)
    graph.insert_after(softmax, made)
    for reader, place in readers:
        reader.replace_input_with(place, guarded)
    for reader, _ in readers:  # a check for NaN, which has nothing to find now
        if reader.op_type == "IsNaN":
            ((checked, _),) = reader.outputs[0].uses()
            checked.outputs[0].replace_all_uses_with(guarded)
            graph.remove([checked, reader], safe=True)


def _add_constant(graph: Any, reader: Any, value: Any) -> Any:
    """Add a constant before a node; floats have the type of what the node makes."""
    import onnx_ir

    dtype = reader.outputs[0].dtype or onnx_ir.DataType.FLOAT
    array = np.array(value, dtype.numpy() if isinstance(value, float) else None)
    node = onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(array)})
    made = node.outputs[0]
    made.name = node.name = f"{reader.name}_constant_{len(list(graph))}"
    made.type = onnx_ir.TensorType(onnx_ir.DataType.from_numpy(array.dtype))
    made.shape = onnx_ir.Shape(array.shape)
    graph.insert_before(reader, node)
    return made
