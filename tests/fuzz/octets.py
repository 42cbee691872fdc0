"""Changes of bytes, of texts, and of values of Python: what formats have in common."""

from __future__ import annotations

import random
import struct
from typing import Any

WORDS = (
    0, 1, 2, 4, 8, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1, 2**63 - 1,
    2**63, 2**64 - 1,
)  # fmt: skip
NAMES = ("", " ", "\0", "é", "\ud800", "x" * 300, "a/b", "..", "?", "?x.0", "-1", "1", "%s", "\n")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, -(2**63), 2**64, 10**30, 0.0, -0.0, 0.5, 1e-45, 1e300,
    float("inf"), float("-inf"), float("nan"), *NAMES, b"", b"x", (), [], [0], ["x"], [None], {},
    {"x": 1}, set(), range(3), 1j, object(), print, [[]], [[1], [1, 2]],
)  # fmt: skip


def change(data: bytearray, rng: random.Random) -> None:
    """Change bytes in place: bits, words, pieces that are cut, doubled, moved or made up."""
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 16, 64))
    match rng.randrange(9):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at % len(data)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        case 2 | 3:
            form = rng.choice("HIQ")
            word = struct.pack(
                f"<{form}", rng.choice(WORDS) & ((1 << 8 * struct.calcsize(form)) - 1)
            )
            at -= at % len(word) if rng.random() < 0.7 else 0
            data[at : at + len(word)] = word
        case 4:
            del data[at : at + size]
        case 5:
            data[at:at] = data[at : at + size]
        case 6:
            other = rng.randrange(len(data) + 1)
            data[at : at + size] = data[other : other + size]
        case 7:
            data[at:at] = rng.randbytes(size)
        case _:
            del data[at:]


def change_values(value: Any, rng: random.Random) -> Any:
    """A nested value of dicts and lists, as in JSON and TOML, with one part changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != name}
            case 1:
                return {**value, rng.choice((*NAMES, f"{name}s")): value[name]}
            case 2:
                return {**value, name: value[rng.choice(list(value))]}
        return {**value, name: change_values(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
        return [*value[:at], change_values(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, value * 10**6, float(value)))
    return rng.choice(VALUES[:32])
