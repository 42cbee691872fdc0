"""Groups of samples: wide layers of a forward pass run sample by sample.

For a whole batch, a value in an image network is often larger than the caches, so each layer reads
it from memory again.  One sample of it is smaller.  So the calls of the forward pass between two
narrow values run sample by sample, as a group (tile.py), and the wide values between them stay in a
cache.  This is done in inference and evaluation, and in the layers of a training step before the
first trained one.  Values that the backward pass reads must be whole, so they end a group.

    Before   expand(x, a); for each of 28 tiles: depthwise(a, b); project(b, c)     # x a c whole
    After    for each of 8 samples: expand(x, a); depthwise(a, b); project(b, c)    # x c whole

Calls whose weights are larger than what they read and write of a sample are left out, because their
weights would come from memory for each sample.

*Requires* calls in the order in which they will run.  *Ensures* the same order.

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
