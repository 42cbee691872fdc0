"""The rules of a plan.  They are checked once, when it is made or read from a file.

Binding it to memory asks for it again, for plans that come another way: a plan that has passed
cannot change, and carries a mark that nothing else gives it.

A plan that passes touches only bytes of its own regions, through pointers to the element types that
its kernels are compiled for (form.py).  No step reads what no step wrote, no value is overwritten
before its last reader, and no two threads meet at the same bytes without a barrier between them
(sharing.py).  So much follows from the plan alone.
"""

from __future__ import annotations

from engine.plan.form import PlanForm
from engine.plan.plan import Plan
from engine.plan.sharing import PlanSharing


def verify(plan: Plan) -> Plan:
    """Check all rules of a plan, and return it; one that has passed is not checked again.

    Raises:
        PlanError: naming the buffer, step or port that breaks a rule.
    """
    if not getattr(plan, "_is_verified", False):
        form = PlanForm(plan)
        form.check()
        PlanSharing(form).check()
        object.__setattr__(plan, "_is_verified", True)
    return plan
