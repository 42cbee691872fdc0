"""Groups of samples: large images of a batch go forward through layers one by one.

A value of a network of images is often larger than the caches for a whole batch, and so each layer
reads it from memory again; a sample's part is smaller.  So calls of the forward pass run sample by
sample, as a group (tile.py), from one narrow value to the next: wide values between them stay in a
cache.  That is so in answers, in evaluations, and in the layers of a training step below all those
that are trained; what the backward pass reads is whole, and ends a group.

    Before   expand(x, a); for each of 28 tiles: depthwise(a, b); project(b, c)     # x a c whole
    After    for each of 8 samples: expand(x, a); depthwise(a, b); project(b, c)    # x c whole

Calls whose weights are more than what they read and write of a sample stay as they are: weights
would come from memory for each sample.

*Requires* calls in the order in which they are to run.  *Ensures* that this order stays.

Source: chains of layers that are computed for a part of the image at a time, Alwani et al.,
"Fused-layer CNN accelerators", MICRO 2016, with the samples of a batch as the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from engine.graphs.planner.constant_calls import list_same
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.tile import REACH, UNEVEN, find_sample_cuts
from engine.kernels.machine.target import Target

# Times `Target.tile_bytes`, of the largest value that only a group touches: less stays in the cache
# as it is.
LARGE = 2
# Times `Target.tile_bytes`: what a group touches of a sample from which its values are as far away
# as values of a whole batch.  If all layers of MobileNetV2 are one group, answers take
# 7 % longer (`python -m bench answers mobilenet --batch 8`).
FAR = 16


def take_samples(draft: Draft, target: Target, threads: int) -> None:
    """Make segments of the calls that are to run sample by sample, in place."""
    large = {
        name
        for name, value in draft.values.items()
        if value.region == "work" and value.nbytes >= LARGE * target.tile_bytes
    }
    if not large:
        return
    cuts = find_sample_cuts(draft, target, threads, draft.values)
    users = Counter(name for call in draft.calls for name in call.list_touched("rwus"))
    number = 0
    for run in _list_runs(draft, cuts):
        count = min(
            draft.values[name].nbytes // size for n in run for name, size in cuts[n].items()
        )
        rounds = -(-count // threads)
        # One round has all samples at once: no value takes less memory, and more live together.
        is_worth = rounds > 1 and rounds * threads <= UNEVEN * count
        if not is_worth or all(large.isdisjoint(cuts[n]) for n in run):
            continue
        for group in _list_groups(draft, cuts, users, run, count * FAR * target.tile_bytes):
            touched = Counter(name for n in group for name in cuts[n])
            if any(
                _is_inside(draft, users, name, touched[name]) for name in large & touched.keys()
            ):
                number += 1
                for n in group:
                    draft.calls[n] = replace(draft.calls[n], segment=number)


def _is_inside(draft: Draft, users: Mapping[str, int], name: str, touching: int) -> bool:
    """Return whether no other calls touch a value than so many."""
    return touching == users[name] and draft.values[name].region == "work"


def _list_runs(draft: Draft, cuts: Sequence[Mapping[str, int]]) -> Iterator[list[int]]:
    """Yield the places of forward calls that can run sample by sample at no loss.

    They are neighbours, except for calls that fold and pack weights, which can stand before them.

    cuts: of each call the values that are cut, and the bytes of a sample.
    """
    run: list[int] = []
    is_same = list_same(draft)
    for n, call in enumerate(draft.calls):
        if is_same[n] and call.phase == "fwd":
            continue
        shared = [name for name in call.list_touched("r") if name not in cuts[n]]
        if (
            call.phase == "fwd"
            and cuts[n]
            and sum(draft.values[name].nbytes for name in shared) <= sum(cuts[n].values())
        ):
            run.append(n)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _list_groups(
    draft: Draft,
    cuts: Sequence[Mapping[str, int]],
    users: Mapping[str, int],
    run: Sequence[int],
    far: int,
) -> list[Sequence[int]]:
    """Return the groups of a run of calls that move the fewest bytes, the last group first.

    Values inside a group count the less, the less the group touches: in full from `far` bytes of
    all samples on.

    users: how many calls touch each value.
    """
    best = [(0.0, 0)]  # of the calls before each: the bytes, and where their last group begins
    for end in range(1, len(run) + 1):
        options = list[tuple[float, int]]()
        touched = Counter[str]()
        moved = inside = size = 0
        for begin in range(end - 1, max(end - REACH, 0) - 1, -1):
            for name in cuts[run[begin]]:
                value = draft.values[name]
                size += 0 if touched[name] else value.nbytes
                moved += value.nbytes
                touched[name] += 1
                if _is_inside(draft, users, name, touched[name]):
                    inside += users[name] * value.nbytes
            spared = inside * max(0.0, 1 - size / far)
            options.append((best[begin][0] + moved - spared, begin))
        best.append(min(options))
    groups = list[Sequence[int]]()
    end = len(run)
    while end:
        begin = best[end][1]
        groups.append(run[begin:end])
        end = begin
    return groups
