"""Packed bytes: plans of a build that take less of its library, and are whole in a model's memory.

    0nnnnnnn                     n + 1 bytes as they are, which follow
    1wnnnnnn distance            n + 3 bytes again, from `distance` bytes before the place they go
                                 to, of 8 bits, or of 16 where w is 1, the lower half first

The names of parameters and the records of steps repeat one another: of MobileNetV2's 36 KB 19 are
left.  `unpack` of runtime/tables.c reads it.
"""

from __future__ import annotations

LITERALS, LEAST, MOST = 128, 3, 66  # bytes of a run as they are; bytes that are there again
NEAR, FAR = 1 << 8, 1 << 16  # distances below them take a byte, and two
WIDE = 0x40
TRIED = 64  # earlier places that are tried for each


def pack(content: bytes) -> bytes:
    """Return the bytes packed, as short as runs and the places that are tried let them be."""
    size = len(content)
    matches = list(_find_matches(content))
    cost, chosen = [0] * (size + 1), [(1, 0)] * size  # of what begins there: length and distance
    for at in reversed(range(size)):
        best = cost[at + 1] + 2
        pick = (1, 0)
        for length in range(2, min(LITERALS, size - at) + 1):
            if chosen[at + length - 1][1]:
                break  # a run that went on over a repetition would not be shorter
            if cost[at + length] + length + 1 < best:
                best, pick = cost[at + length] + length + 1, (length, 0)
        for longest, distance in matches[at]:
            taken = 2 if distance < NEAR else 3
            for length in range(LEAST, longest + 1):
                if cost[at + length] + taken < best:
                    best, pick = cost[at + length] + taken, (length, distance)
        cost[at], chosen[at] = best, pick
    out, at = bytearray(), 0
    while at < size:
        length, distance = chosen[at]
        if distance:
            is_wide = distance >= NEAR
            out.append(0x80 | WIDE * is_wide | length - LEAST)
            out += distance.to_bytes(1 + is_wide, "little")
        else:
            out.append(length - 1)
            out += content[at : at + length]
        at += length
    return bytes(out)


def _find_matches(content: bytes) -> list[list[tuple[int, int]]]:
    """Return, for each place, the longest repetition at a near distance and at a far one: lengths
    and distances.
    """
    places: dict[bytes, list[int]] = {}
    matches = []
    for at in range(len(content)):
        start = content[at : at + LEAST]
        longest = [(0, 0), (0, 0)]
        most = min(MOST, len(content) - at)
        for place in reversed(places.get(start, ())[-TRIED:]):
            if at - place >= FAR:
                break
            length, is_far = LEAST, at - place >= NEAR
            while length < most and content[place + length] == content[at + length]:
                length += 1
            if length > longest[is_far][0]:
                longest[is_far] = length, at - place
        matches.append([pair for pair in longest if pair[0]])
        if len(start) == LEAST:
            places.setdefault(start, []).append(at)
    return matches


def unpack(packed: bytes) -> bytes:
    """Return the bytes that were packed."""
    out, at = bytearray(), 0
    while at < len(packed):
        token, at = packed[at], at + 1
        if token & 0x80:
            count = 2 if token & WIDE else 1
            distance = int.from_bytes(packed[at : at + count], "little")
            for _ in range((token & WIDE - 1) + LEAST):
                out.append(out[-distance])
            at += count
        else:
            out += packed[at : at + token + 1]
            at += token + 1
    return bytes(out)
