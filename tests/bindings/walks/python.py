"""Python: the names of `engine.api`, which are not C's; it reads files itself."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_shown

_TAKE = {
    "text": "text({0})", "flag": "{0} != '0'", "int": "whole({0})", "long": "whole({0})",
    "float": "real({0})", "bytes": "content({0})", "inputs": "inputs({0})",
    "numbers": "numbers({0})", "floats": "zeros({0}, np.float32)",
    "doubles": "zeros({0}, np.float64)", "ints": "tokens({0})",
}  # fmt: skip

# The calls of Python for functions of C, and for results that other languages return whole.
CALLS = {
    "create_from": "OPENED({0})",
    "cpu": "m.module.get_cpu()",
    "is_joined": "m.optimizer.is_joined",
    "train_step": "m.module.train()(*{0})",
    "eval_step": "m.module.eval()(*{0})",
    "infer": "m.predict(*{0})",
    "append": "m.decoder().append({0})",
    "truncate": "m.decoder().truncate({0})",
    "get_length": "m.decoder().length",
    "get_capacity": "m.decoder().capacity",
    "optimizer_step": "m.optimizer.step()",
    "lazy_reset_grad": "m.module.lazy_reset_grad()",
    "set_seed": "m.module.set_seed({0})",
    "get_draws": "m.module.get_draws()",
    "set_draws": "m.module.set_draws({0})",
    "get_learning_rate": "m.optimizer.get_learning_rate()",
    "set_learning_rate": "m.optimizer.set_learning_rate({0})",
    "set_linear_rate": "mnist.LinearLRScheduler(m.optimizer, {1}, {2}, {0})",
    "get_step": "m.optimizer.get_step()",
    "set_step": "m.optimizer.set_step({0})",
    "get_skipped": "m.optimizer.get_skipped()",
    "get_loss_scale": "m.optimizer.loss_scale",
    "set_loss_scale": "m.optimizer.set_loss_scale({0})",
    "set_parameter": "set_parameter(m, {0}, {1})",
    "set_gradient": "set_gradient(m, {0}, {1})",
    "parameters_size": "m.module.get_parameters_size({0})",
    "set_parameters": "m.module.copy_buffer_to_parameters({0}, {1})",
    "set_parameters_f64": "m.module.copy_buffer_to_parameters({0}, {1})",
    "save": "mnist.CheckpointState.save_checkpoint(m.state, {0}, {1})",
    "set_property_int": "set_property(m, {0}, {1})",
    "set_property_float": "set_property(m, {0}, {1})",
    "set_property_string": "set_property(m, {0}, {1})",
    "property_count": "len(m.state.properties)",
    "whole_parameters": "m.module.get_contiguous_parameters({0})",
    "whole_checkpoint": "m.state.to_bytes({0})",
}


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the entry of a call in a dictionary of Python."""
    call = CALLS[method.name].format(*values)
    told = f"tell({call})" if is_shown(method) else f"done({call})"
    return f'    "{method.name}": lambda m, w: {told},'


def _takes(kind: str, word: str) -> bool:
    """Arrays know their sizes, and inputs are there."""
    return not (word.startswith("claim:") or (kind == "inputs" and "null" in word.split(",")))


def _has(method: Method) -> bool:
    return method.name in CALLS


TONGUE = Tongue(_TAKE, _write, _takes, _has, states=("live",), has_tokens=True)
