"""Options are described where users look for them: in the docstring of their class."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import engine
from engine.base.fields import declare_option, describe_fields
from engine.base.public_names import HOMES

PUBLIC = {
    name: kind
    for name in sorted(HOMES)
    if inspect.isclass(kind := getattr(engine, name)) and dataclasses.is_dataclass(kind)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_field_of_a_public_class_is_described(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    names = [field.name for field in dataclasses.fields(PUBLIC[name]) if field.init]
    assert not [each for each in names if each not in text and not each.startswith("_")]


def test_a_field_has_its_own_row_its_declaration_or_the_row_of_a_base() -> None:
    class Base:
        """Options.

        low, high: the limits,
            in bytes.
        """

    @describe_fields
    @dataclasses.dataclass
    class Both(Base):
        """Limits.

        seed: the seed.
        """

        low: int
        high: int
        seed: int = 0
        count: int = declare_option(1, "The number of parts.")

    assert Both.__doc__ == (
        "Limits.\n\nseed: the seed.\nlow, high: the limits,\n    in bytes.\n"
        "count: The number of parts."
    )

    @dataclasses.dataclass
    class Silent:
        """No row at all."""

        size: int

    with pytest.raises(TypeError, match="no docstring of Silent describes its field 'size'"):
        describe_fields(Silent)
