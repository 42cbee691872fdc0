"""Assembly: gives every value of an ordered draft its place in memory, and returns the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

from engine.base import limits
from engine.graphs.planner.barriers import find_barriers
from engine.graphs.planner.draft import Draft, DraftCall, Value
from engine.graphs.planner.lifetimes import (
    Lifetimes,
    compute_liveness_bound,
    find_lifetimes,
    merge_inplace,
)
from engine.graphs.planner.place import place
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import (
    ALIGN,
    Arg,
    Buffer,
    Kernel,
    KernelSpec,
    Mode,
    Plan,
    PlanStep,
    Port,
    align,
)
from engine.plan.verify import verify


def assemble(
    draft: Draft,
    kernel_set: str,
    threads: int,
    region_bytes: Mapping[str, int],
    name: str,
    searched: tuple[int, int] = (0, 0),
    once: int = 0,
) -> Plan:
    """Give every value of an ordered draft its place in memory; return the verified plan.

    kernel_set: the name of the kernels that the plan is for.
    searched, once: as for `Plan`.
    """
    lives = find_lifetimes(draft, draft.calls)
    sizes = dict(region_bytes)
    offsets = _place_outside_work(draft, lives, sizes)
    blocks = merge_inplace(draft, lives)
    sizes["work"] = place(blocks)
    _check_sizes(draft, sizes, name)
    offsets |= {n: block.offset for block in blocks for n in block.names}
    placed = {n: (v, offsets[n]) for n, v in draft.values.items() if n in offsets}
    index = {n: i for i, n in enumerate(placed)}
    specs = sorted({c.spec for c in draft.calls}, key=lambda spec: spec.symbol)
    return verify(
        Plan(
            name=name,
            target=kernel_set,
            threads=threads,
            regions=tuple(sorted(sizes.items())),
            buffers=tuple(
                Buffer(n, v.type.dtype, v.type.dims, v.region, offset, align(v.nbytes), *lives[n])
                for n, (v, offset) in placed.items()
            ),
            steps=_make_steps(draft, index, _find_meets(draft, placed)),
            kernels=tuple(map(_make_kernel, specs)),
            inputs=tuple(Port(o, index[n], draft.values[n].type.dims) for o, n in draft.inputs),
            outputs=tuple(Port(o, index[n], shape) for o, n, shape in draft.outputs),
            constants=tuple(
                (index[n], v.data.tobytes())  # type: ignore[union-attr]  # const has data
                for n, (v, _) in placed.items()
                if v.region == "const"
            ),
            lower_bound=compute_liveness_bound(blocks),
            once=once,
            searched=searched,
        )
    )


def _place_outside_work(draft: Draft, lives: Lifetimes, sizes: dict[str, int]) -> dict[str, int]:
    """Return the offsets of the values outside the arena, which share no bytes.

    sizes: the bytes of each region; it gets the sizes of the regions that are filled here.
    """
    offsets: dict[str, int] = {}
    for region in ("io", "const", "made"):
        mine = {n: v.nbytes for n, v in draft.values.items() if v.region == region and n in lives}
        packed, sizes[region] = _pack(mine)
        offsets |= packed
    return offsets | {n: v.place.offset for n, v in draft.values.items() if v.place is not None}


def _find_meets(draft: Draft, placed: Mapping[str, tuple[Value, int]]) -> Sequence[bool]:
    """Return for each call whether all threads meet before it."""
    places = {n: (v.region, at, at + v.nbytes) for n, (v, at) in placed.items()}
    return find_barriers(draft.calls, places)


def _make_steps(
    draft: Draft, index: Mapping[str, int], meets: Sequence[bool]
) -> tuple[PlanStep, ...]:
    """Return the calls as steps.

    index: the number of the buffer of each value.
    meets: see `_find_meets`.
    """
    made: dict[tuple[Mode, str, tuple[int, int]], Arg] = {}

    def make_arg(mode: Mode, n: str, cut: tuple[int, int]) -> Arg:
        """Return an argument; equal ones are one object."""
        key = mode, n, cut
        if key not in made:
            made[key] = Arg(index[n], mode, *cut) if n else Arg(-1, "-")
        return made[key]

    def make_args(call: DraftCall) -> tuple[Arg, ...]:
        cuts = call.cut.args if call.cut else repeat((0, 0))
        pairs = zip(call.args, cuts, strict=False)
        return tuple([make_arg(mode, n, cut) for (mode, n), cut in pairs])

    symbols = {spec: spec.symbol for spec in {c.spec for c in draft.calls}}
    return tuple(
        PlanStep(
            kernel=symbols[c.spec],
            args=make_args(c),
            consts=c.consts,
            source=c.source,
            phase=c.phase,
            inplace=c.inplace,
            barrier=meet,
            operands=c.operands,
            group=c.cut.group if c.cut else 0,
            tiles=c.cut.tiles if c.cut else 0,
            numbered=bool(c.cut and c.cut.numbered),
            again=c.again,
            alone=c.alone,
        )
        for c, meet in zip(draft.calls, meets, strict=True)
    )


def _check_sizes(draft: Draft, sizes: Mapping[str, int], name: str) -> None:
    """Refuse a plan whose regions have too many bytes; its largest values are named.

    Raises:
        LimitError: they have.
    """
    total = sum(sizes.values())
    if total > limits.limit("PLAN_BYTES"):
        largest = sorted(draft.values.values(), key=lambda v: -v.nbytes)[:3]
        names = ", ".join(f"{v.name!r} {v.type}" for v in largest)
        limits.check("PLAN_BYTES", total, f"plan {name}", f"with {names} and others it takes")


def _make_kernel(spec: KernelSpec) -> Kernel:
    """Return a kernel of a plan: its spec, and the arguments that its template takes."""
    return Kernel(spec, list_templates()[spec.template].takes(*spec.params))


def _pack(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Place values one after another; return their offsets and the size of all.

    sizes: the bytes of each value.
    """
    offsets, top = {}, 0
    for name, nbytes in sizes.items():
        offsets[name] = top
        top += align(nbytes)
    assert top % ALIGN == 0
    return offsets, top
