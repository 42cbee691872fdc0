"""Colours of the classes in masks."""

from __future__ import annotations

from collections.abc import Sequence

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_PARTS, _BITS = 3, 8


def choose_colours(count: int, given: Sequence[Sequence[int] | int] = ()) -> list[Colour]:
    """Return a colour for each class: the given one, or otherwise the one of Pascal VOC.

    Pascal VOC spreads the bits of a class's number over the three parts, lowest bits first, so that
    neighbours differ and class 0 is black.

    given: what masks have for the first classes; numbers are passed over.
    """
    colours: list[Colour] = []
    for number in range(count):
        parts = given[number] if number < len(given) else number
        if isinstance(parts, int):
            parts = [
                sum(
                    ((number >> (_PARTS * bit + part)) & 1) << (_BITS - 1 - bit)
                    for bit in range(_BITS)
                )
                for part in range(_PARTS)
            ]
        red, green, blue = (min(part, 255) for part in parts)
        colours.append((red, green, blue))
    return colours
