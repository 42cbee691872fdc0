"""The op and kernel tables: unique names, complete declarations, a case row for every op."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.kernels import families, ops, templates
from engine.kernels._op import Op
from tests.harness import all_cases

# Ops whose results are known before lowering: they fold, and never reach a kernel.
FOLDED = {
    "BroadcastGradientArgs", "Constant", "ConstantOfShape", "Range", "Shape", "Size",
}  # fmt: skip
# Ops that training graphs hold around the tensors; tests/test_goldens.py and test_api.py run them.
IN_PLACE = {
    "AdamWOptimizer", "SGDOptimizerV2", "InplaceClipGradNorm", "InPlaceAccumulatorV2", "Map",
}  # fmt: skip


def test_names_are_unique() -> None:
    declared = Counter((op.domain, op.name) for family in families() for op in family.OPS)
    assert not [name for name, count in declared.items() if count > 1]
    kernels = Counter(t.name for family in families() for t in family.KERNELS)
    assert not [name for name, count in kernels.items() if count > 1]


def test_template_names_are_their_functions() -> None:
    for name, template in templates().items():
        assert template.build.__name__ == name


@pytest.mark.parametrize("op", ops().values(), ids=lambda o: f"{o.domain}:{o.name}")
def test_every_op_can_be_computed(op: Op) -> None:
    assert op.lower or op.view or op.expr or op.fold


def test_every_op_has_a_case() -> None:
    covered = {(c.domain, c.op) for c in all_cases()}
    missing = [
        f"{domain}:{name}"
        for domain, name in ops()
        if (domain, name) not in covered and name not in FOLDED | IN_PLACE
    ]
    assert not missing


def test_every_differentiable_op_has_a_gradient_case() -> None:
    covered = {(c.domain, c.op) for c in all_cases() if c.grad}
    missing = [
        f"{domain}:{name}"
        for (domain, name), op in ops().items()
        if op.grad and (domain, name) not in covered and name not in FOLDED
    ]
    assert not missing
