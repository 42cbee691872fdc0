"""Arguments by name: a numba type whose attributes are the parameters of a kernel's signature.

A body that takes `(call, tid, nthreads)` reads a parameter as `call.x`.  Parameters are registers,
like the parameters of a function: nothing is stored, and an unused one costs nothing.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import errors
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, lower_getattr_generic, models, register_model


class Arguments(types.Type):
    """The arguments of a kernel with these types by name."""

    def __init__(self, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = dict(fields)
        super().__init__(f"arguments({', '.join(f'{n}: {t}' for n, t in fields)})")

    def read(self, builder: Any, value: Any, name: str) -> Any:
        """Emit the value of one of them."""
        return builder.extract_value(value, [*self.fields].index(name))


@register_model(Arguments)
class _ArgumentsModel(models.StructModel):
    """As many arguments of the function as there are fields."""

    def __init__(self, manager: Any, kind: Arguments) -> None:
        super().__init__(manager, kind, [*kind.fields.items()])


@infer_getattr
class _ArgumentAttributes(AttributeTemplate):
    key = Arguments

    def generic_resolve(self, kind: Arguments, name: str) -> Any:
        """Return the type of an argument."""
        if name not in kind.fields:
            known = ", ".join(kind.fields)
            raise errors.NumbaAttributeError(f"the kernel has no {name!r}, it has {known}")
        return kind.fields[name]


@lower_getattr_generic(Arguments)
def _read(context: Any, builder: Any, kind: Arguments, value: Any, name: str) -> Any:
    return kind.read(builder, value, name)
