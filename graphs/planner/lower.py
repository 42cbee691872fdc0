"""Lowering: after all passes, the nodes of a graph become kernel calls on named values.

The result is a `Draft`: the calls in the order of the graph, and the values that they read and
write.  No value has a place in memory yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np

from engine.base import limits
from engine.base.aliases import Array
from engine.base.element_types import HALVES, ITEMSIZE, OF_NUMPY
from engine.base.errors import (
    DTypeError,
    ModelError,
    PlanError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
)
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import get_declaration, make_site, run_rule
from engine.graphs.passes.infer import naming_sources
from engine.graphs.passes.simplify import forward_part
from engine.graphs.planner.draft import Draft, DraftCall, Piece, Place, Value, resize_type
from engine.graphs.planner.memo import ALTERNATIVES, NodeMemo, make_titles
from engine.kernels.loops import map as maps
from engine.kernels.loops.map import lower_map
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_ops, list_templates
from engine.kernels.vocabulary.call import MOST, KernelCall, Machine
from engine.kernels.vocabulary.op import MS, OURS, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.signature import Access
from engine.kernels.vocabulary.sizes import Noted, SizedArray, Sizes, make_shape_key, note_number
from engine.plan.context import RANDOM, STATUS
from engine.plan.plan import DONE, FAULT, LASTING, NOISE, UNWRITTEN, KernelSpec, Mode, Phase
from engine.plan.words import Packed, Words

SIGNAL = (OURS, "UpdateSignal")  # of joined graphs


Made = TypeVar("Made")


class _NodeLowering:
    """The interface of the lowering rule of one node (`kernels.vocabulary.op.Lowering`)."""

    def __init__(
        self, job: DraftSource, piece: Piece, node: Node, site: Site, phase: Phase
    ) -> None:
        self.job, self.piece, self.node, self.site, self.phase = job, piece, node, site, phase
        self.target, self.threads, self.precision = job.target, job.threads, job.precision
        self.declared = list_ops()[site.domain, site.op]
        calls = self.declared.calls
        self.calls = None if calls is None else {template.name for template in calls}
        self.temps = 0

    def x(self, i: int) -> Operand:
        self.site.type(i)
        name = self.node.inputs[i]
        return Operand(name, self.job.types[name])

    def y(self, i: int) -> Operand:
        if i >= len(self.node.outputs) or not self.node.outputs[i]:
            self.site.fail(f"output {i} is missing")
        name = self.node.outputs[i]
        accumulated = self.job.accumulated.get(name)
        if accumulated is not None:
            return Operand(accumulated[0], self.job.types[accumulated[0]])
        return Operand(name, self.job.types[name])

    def wants(self, i: int) -> bool:
        outputs = self.node.outputs
        return i < len(outputs) and bool(outputs[i]) and outputs[i] in self.job.used

    def reset(self, i: int) -> Operand | None:
        accumulated = self.job.accumulated.get(self.node.outputs[i])
        return Operand(accumulated[1], TensorType("b1", (1,))) if accumulated else None

    def temp(self, dtype: str, shape: Sequence[int]) -> Operand:
        self.temps += 1
        name = f"{self.job.titles[self.node]}#{self.temps}"
        return self.piece.add(name, TensorType(dtype, tuple(shape)))

    def const(self, value: Array) -> Operand:
        self.temps += 1
        name = f"{self.job.titles[self.node]}#c{self.temps}"
        made = self.piece.values[name] = _make_constant(name, value)
        return Operand(name, made.type)

    def keeps(self, operand: Operand, *, forever: bool = False) -> bool:
        fixed = self.job.kept.get(operand.name)
        return fixed is not None and (fixed or not forever)

    def fault(self) -> Operand:
        return self.piece.add(FAULT, TensorType("i64", (STATUS.size,)), region="io")

    def noise(self) -> Operand:
        return self.piece.add(NOISE, TensorType("i64", (RANDOM.size,)), region="io")

    def once(self, key: object, shapes: Sequence[Sequence[int]], make: Callable[[], Made]) -> Made:
        made: Made = self.job.make_once((key, *map(make_shape_key, shapes)), make)
        return made

    def call(
        self,
        kernel: tuple[str, tuple[str | int, ...]],
        *,
        operands: Sequence[tuple[Access, Operand]] = (),
        may_alias: Sequence[tuple[int, int]] | None = None,
        updates: Container[str] = (),
        **named: Operand | int | float | Packed | None,
    ) -> None:
        spec = KernelSpec(kernel[0], tuple(note_number(p) for p in kernel[1]))
        if self.calls is not None and spec.template not in self.calls:
            raise LookupError(
                f"{self.declared.title} calls the kernel {spec.template!r}, which its declaration "
                f"`calls` leaves out"
            )
        takes = self.job.find_takes(spec)
        args, consts, inplace = self._order_operands(spec, operands, may_alias, updates, named)
        if spec.template != maps.map.name and spec.params[0] in HALVES:
            self.site.fail(
                f"the node would compute in {spec.params[0]}",
                "f32, f64; elementwise nodes and nodes that move data also in 16 bits",
            )
        resolved = []
        if len(args) != len(takes):
            raise PlanError(
                f"{self.site.where()}: {len(args)} pointers for kernel {spec.template}, which "
                f"takes {len(takes)}"
            )
        for (mode, operand), taken in zip(args, takes, strict=True):
            if operand is None:
                resolved.append((mode, ""))
                continue
            made = self.piece.values.setdefault(operand.name, None)
            root = operand.name if made else self.job.find_root(operand.name)
            stored = (made.type if made else self.job.types[root]).dtype
            if stored not in taken:
                raise DTypeError(
                    f"{self.site.where()}: {operand.name!r} is {operand.type}; kernel "
                    f"{spec.template} takes {'|'.join(taken)}"
                )
            resolved.append((mode, root))
        if not all(-(1 << 63) <= c < 1 << 63 for c in consts if type(c) is int):
            self.site.fail(f"sizes are too large: {list(consts)}", "sizes of 64 bits")
        self._check_reach(spec, [operand for _, operand in args], consts)
        self.piece.calls.append(
            DraftCall(
                spec,
                tuple(resolved),
                tuple(consts),
                self.node.name or self.node.op,
                self.phase,
                tuple(inplace),
                again=self.node.again,
            )
        )

    def _order_operands(
        self,
        spec: KernelSpec,
        operands: Sequence[tuple[Mode, Operand | None]],
        may_alias: Sequence[tuple[int, int]] | None,
        updates: Container[str],
        named: dict[str, Any],
    ) -> tuple[list[tuple[Any, Operand | None]], list[Any], Sequence[tuple[int, int]]]:
        """Return pointers with their modes, numbers and aliasing, in the kernel's order."""
        template = list_templates()[spec.template]
        order = template.order
        if not order.needed <= named.keys() <= order.names:
            raise PlanError(
                f"{self.site.where()}: kernel {spec.template} takes "
                f"{', '.join(p.name for p in template.parameters)}; missing "
                f"{sorted(order.needed - named.keys())}, unknown "
                f"{sorted(named.keys() - order.names)}"
            )
        consts = [named[name] for name in order.numbers]
        packed = named.get(order.words)
        values = _pack_words(spec, template.trailing(spec.params), packed)
        names: dict[str, Any] = {}
        if order.updates:
            names = template.bound(spec.params) | template.named(spec.params, [*consts, *values])
        args: list[tuple[Any, Operand | None]] = []
        for p in order.pointers:
            is_updated = p.name in updates or (p.updates and template.holds(p.updates, names))
            args.append(("u" if is_updated else p.access, named.get(p.name)))
        alias = order.may_alias if may_alias is None else may_alias
        return [*args, *operands], [*consts, *values], alias

    def _check_reach(
        self, spec: KernelSpec, operands: Sequence[Operand | None], consts: Sequence[Any]
    ) -> None:
        """Refuse a call that reaches outside of an operand; sizes are those taken last."""
        template, value = list_templates()[spec.template], self.job.sizes.value
        elements: dict[str, int] = {}
        itemsizes: dict[str, int] = {}
        contents: dict[str, bytes] = {}
        for name, operand in zip(template.operand_names(len(operands)), operands, strict=True):
            elements[name], itemsizes[name] = 0, 1
            if operand is not None:
                made = self.piece.values.get(operand.name)
                elements[name] = math.prod(map(value, operand.type.dims))
                itemsizes[name] = ITEMSIZE[operand.type.dtype]
                if made is not None and made.data is not None:
                    contents[name] = np.ascontiguousarray(value(made.data)).tobytes()
        numbers = tuple(map(value, consts))
        if any(isinstance(n, int) and n >= MOST for n in numbers):
            return  # sizes beyond every limit, which the plan is refused for
        key = (spec, numbers, *elements.values())
        if key in self.job.inside:
            return
        call = KernelCall(
            template, spec.params, numbers, self.threads, self.job.machine, elements, itemsizes,
            contents,
        )  # fmt: skip
        try:
            outside = call.overreach()
        except PlanError as error:
            raise ShapeError(f"{self.site.where()}: kernel {spec.template}: {error}") from error
        if outside is None:
            if not contents:
                self.job.inside.add(key)
        else:
            name, size = outside
            raise ShapeError(
                f"{self.site.where()}: kernel {spec.template} reaches {size} elements into "
                f"{name}, which has {elements[name]}"
            )


class DraftSource:
    """A graph after all passes, from which a draft is made for the sizes that were taken last.

    The lowering of a node is done again only for sizes that give one of its questions an answer
    that none of its pieces has.

    made: how many pieces were made.
    """

    def __init__(
        self,
        graph: Graph,
        types: dict[str, TensorType],
        constants: Mapping[str, Array],
        places: Mapping[str, Place],
        target: Target,
        threads: int,
        sizes: Sizes,
        precision: str = "f32",
        keeps: bool = False,
    ) -> None:
        """Start with nothing lowered.

        types, constants: the types and constants of the graph's values; dimensions may be sizes.
        places: where graph inputs that live in persistent regions are.  All other inputs of the
            graph become inputs of the plan.
        target: the CPU whose vectors and caches decide block sizes.
        threads: how many threads share the work of each call.
        precision: see `choose_storage`, which has changed `types` accordingly.
        keeps: whether what follows from constants and parameters alone is made once
            (constant_calls.py).
        """
        for name, t in types.items():
            if t.dtype not in ITEMSIZE and not t.dtype.startswith("seq"):
                raise DTypeError(
                    f"{graph.name}: {name!r} is {t}; no kernel supports this element type"
                )
            if name in (FAULT, NOISE):
                raise ModelError(
                    f"{graph.name}: {name!r} is the name of an input that the runtime fills; "
                    "rename the value"
                )
        self.graph, self.types, self.constants = graph, types, constants
        self.places, self.target, self.threads, self.sizes = places, target, threads, sizes
        self.precision, self.machine = precision, Machine.of(target)
        self.inside: set[tuple[Any, ...]] = set()  # calls that stay inside of their operands
        self.used = set(graph.outputs) | {i for n in graph.nodes for i in n.inputs}
        self.accumulated, self.skipped = _find_accumulations(graph, types)
        self.forward = forward_part(graph)
        # An optimizer model is nothing but the update; a joined graph has it as a part.
        self.is_update = any(get_declaration(graph, n).optimizer for n in graph.nodes)
        self.is_joined = any((n.domain, n.op) == SIGNAL for n in graph.nodes)
        self.roots: dict[str, str] = {}  # of views: whose bytes they share
        for node in graph.nodes:
            if node not in self.skipped and get_declaration(graph, node).is_view:
                self.roots[node.outputs[0]] = self.find_root(node.inputs[0])
        self.titles = make_titles(graph.nodes, types)
        self.pieces: dict[Node | str, list[Piece]] = {}
        self.kept = self._list_kept() if keeps else {}
        self.memo = NodeMemo(
            types, constants, self.roots, self.accumulated, self.used, self.titles, self.kept
        )
        self.made = 0
        self.takes: dict[KernelSpec, tuple[tuple[str, ...], ...]] = {}
        self.shared: dict[object, list[tuple[Noted, Any]]] = {}

    def _list_kept(self) -> dict[str, bool]:
        """Return the values that follow from constants and parameters; True: constants alone."""
        regions = {name: place.region for name, place in self.places.items()}
        kept = {name: region in UNWRITTEN for name, region in regions.items() if region in LASTING}
        kept |= dict.fromkeys(self.constants, True)
        for node in self.graph.nodes:
            read = node.list_reads()
            if node.inputs and all(name in kept for name in read):
                fixed = all(kept[name] for name in read)
                kept |= {name: fixed for name in node.outputs if name}
        return kept

    def find_takes(self, spec: KernelSpec) -> tuple[tuple[str, ...], ...]:
        """Return the element types of each pointer of a kernel; its template is asked once."""
        types = self.takes.get(spec)
        if types is None:
            takes = list_templates()[spec.template].takes(*spec.params)
            types = self.takes[spec] = tuple(
                tuple(t[:-1].split("|")) for t in takes if t.endswith("*")
            )
        return types

    def make_once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which is called once for all nodes with an equal key.

        The questions that it asks of sizes are recorded for every node.
        """
        known = self.shared.setdefault(key, [])
        for answers, made in known:
            if self.sizes.holds(answers):
                self.sizes.note(answers)
                return made
        with self.sizes.noting() as answers:
            made = make()
        self.sizes.note(answers)
        known[:] = [(answers, made), *known[: ALTERNATIVES - 1]]
        return made

    def find_root(self, name: str) -> str:
        """Return the name of the value that owns the bytes of a value of the graph."""
        return self.roots.get(name, name)

    def make_draft(self) -> Draft:
        """Lower the graph for the sizes that were taken last.

        Raises:
            UnsupportedOpError: a node has no kernel, or none for its types, or updates a constant.
            UnknownValueError: a node updates a large constant, which is in region frozen.
            ShapeError: the shapes of a node do not fit.
            DTypeError: no kernel takes an element type.
            LimitError: there are too many calls.
        """
        draft, most = Draft(), limits.limit("NODES")
        for name, t in self.graph.inputs.items():
            if name in self.places:
                place = self.places[name]
                draft.add(name, resize_type(t, self.sizes), region=place.region, place=place)
            elif not t.dtype.startswith("seq"):
                draft.add(name, resize_type(t, self.sizes), region="io")
                draft.inputs.append((name, name))
        for node in self.graph.nodes:
            if node not in self.skipped:
                self._lower_node(draft, node)
                if len(draft.calls) > most:
                    what = "as calls of kernels it has over"
                    limits.check("NODES", len(draft.calls), self.graph.name, what)
        taken: set[str] = set()
        for name in self.graph.outputs:
            self._add_output(draft, name, taken)
            taken.add(draft.outputs[-1][1])
        return draft

    def _require(self, draft: Draft, name: str) -> None:
        """Add a constant or the output of a node to a draft, unless it is there."""
        if name in draft.values:
            return
        if name in self.constants:
            draft.values[name] = _make_constant(name, self.constants[name]).resize(self.sizes)
        else:
            draft.add(name, resize_type(self.types[name], self.sizes))

    def _add(self, draft: Draft, piece: Piece) -> None:
        """Add the values and calls of a piece to a draft."""
        for name, value in piece.values.items():
            if value is None:
                self._require(draft, name)
            elif name not in draft.values:
                draft.values[name] = value.resize(self.sizes)
                if value.region == "io" and name in (FAULT, NOISE):
                    draft.inputs.append((name, name))
        for call in piece.calls:
            _check_written(draft, call)
            draft.calls.append(call.resize(self.sizes))

    def _make_piece(self, key: Node | str, make: Callable[[Piece], None]) -> Piece:
        """Return a piece that the sizes fit, made if there is none."""
        known = self.pieces.setdefault(key, [])
        for piece in known:
            if self.sizes.holds(piece.answers):
                return piece
        piece = self._make_new_piece(key, make)
        known[:] = [piece, *known[: ALTERNATIVES - 1]]
        return piece

    def _make_new_piece(self, key: Node | str, make: Callable[[Piece], None]) -> Piece:
        """Return the piece of an equal node by the names of this one, or one made now."""
        if isinstance(key, Node):
            piece = self.memo.find(key, self._find_phase(key), self.sizes.holds)
            if piece is not None:
                return piece
        with self.sizes.noting() as answers:
            piece = Piece(answers)
            make(piece)
        self.made += 1
        if isinstance(key, Node):
            self.memo.add(key, self._find_phase(key), piece)
        return piece

    def _lower_node(self, draft: Draft, node: Node) -> None:
        """Lower a node: a view shares the bytes of its input, any other node becomes calls."""
        op = get_declaration(self.graph, node)
        if op.is_view:
            self._require(draft, node.inputs[0])
            out = node.outputs[0]
            t = resize_type(self.types[out], self.sizes)
            draft.values[out] = Value(out, t, self.find_root(out))
            if op.lower is None:
                return
        self._add(draft, self._make_piece(node, lambda piece: self._lower(piece, node, op)))

    def _find_phase(self, node: Node) -> Phase:
        """Return the phase of the calls of a node."""
        if self.is_update:
            op = get_declaration(self.graph, node)
            if op.optimizer or op.reads_all_gradients or not self.is_joined or DONE in node.inputs:
                return "opt"
        return "fwd" if node in self.forward else "bwd"

    def _lower(self, piece: Piece, node: Node, op: Op) -> None:
        """Run the lowering rule of a node."""
        site = make_site(self.graph, node, self.types, self.constants)
        if op.lower is None:
            site.fail(
                "no kernel computes this operator", "inputs whose values are known before lowering"
            )
        with (
            naming_sources(self.graph, node, self.constants),
            run_rule(op, "the lowering", site, node),
        ):
            op.lower(_NodeLowering(self, piece, node, site, self._find_phase(node)))

    def _add_output(self, draft: Draft, name: str, taken: Set[str]) -> None:
        """Put an output of the graph into region io.

        taken: the values that outputs before it are.

        If it shares its bytes with an input, a constant, a persistent value or another output, a
        call that copies them is added.
        """
        self._require(draft, name)
        root = draft.values[draft.find_root(name)]
        t = resize_type(self.types[name], self.sizes)
        if root.region == "work" and root.name not in taken:
            root.region = "io"
            draft.outputs.append((name, root.name, t.dims))
            return
        out = draft.add(f"{name}#out", t, region="io")
        self._add(draft, self._make_piece(name, lambda piece: self._copy(piece, name, out.name)))
        draft.outputs.append((name, out.name, t.dims))

    def _copy(self, piece: Piece, name: str, out: str) -> None:
        """Call the copy of a value."""
        t = self.types[name]
        node = Node("Identity", (name,), (out,), {}, "", name)
        site = Site(
            op="Identity",
            domain="",
            name=name,
            opset=1,
            ins=(t,),
            attrs={},
            values=(None,),
            n_outs=1,
        )
        made = piece.add(out, t, region="io")
        copy = _NodeLowering(self, piece, node, site, "fwd")
        lower_map(copy, [("in", 0)], [Operand(name, t)], [made])


def _check_written(draft: Draft, call: DraftCall) -> None:
    """Refuse a call that writes to a constant.

    Raises:
        UnknownValueError: the constant is in region frozen.  Ops that leave constants as they are,
            as batch normalisations do, must know that it is one.
        UnsupportedOpError: the constant is in region const.
    """
    for name in call.list_touched("uw"):
        region = draft.values[name].region
        if region in UNWRITTEN:
            text = f"{call.source}: it would update {name!r}, a constant; supported: inputs"
            if region == "frozen":
                raise UnknownValueError(text, inputs=(name,))
            raise UnsupportedOpError(text)


def _make_constant(name: str, value: Array) -> Value:
    """Return a constant: its elements in order, of rank 1 at least."""
    if isinstance(value, SizedArray):
        data: Any = value.reshape(value.shape or 1)
    else:
        data = np.ascontiguousarray(value)
    return Value(name, TensorType(OF_NUMPY[data.dtype], data.shape), name, "const", data=data)


def _pack_words(spec: KernelSpec, wanted: Words | None, words: Packed | None) -> tuple[int, ...]:
    """Return the integers of packed words; none if `words` is None.

    wanted: the words that the kernel reads.

    Raises:
        TypeError: the kernel reads other words than these: a defect of the lowering.
    """
    given = words.words if words else None
    if given is not wanted and given != wanted:
        raise TypeError(f"kernel {spec.symbol} reads {wanted!r}, and gets {given!r}")
    return words.values if words else ()


def _find_accumulations(
    graph: Graph, types: Mapping[str, TensorType]
) -> tuple[dict[str, tuple[str, str]], set[Node]]:
    """Return the gradients that a kernel can add to their accumulation buffer itself.

    Returns for each such gradient the names of its buffer and of the reset flag, and the
    accumulator nodes that need no call of their own then.

    Before   g = Gemm(dy, x); flag = InPlaceAccumulatorV2(buffer, g, reset)
    After    Gemm adds to `buffer`, or overwrites it when `reset`; g is never stored
    """
    makers, readers, ends = graph.find_producers(), graph.find_consumers(), set(graph.outputs)
    buffers: dict[str, tuple[str, str]] = {}
    skipped: set[Node] = set()
    for node in graph.nodes:
        if (node.domain, node.op) != (MS, "InPlaceAccumulatorV2") or len(node.inputs) < 3:
            continue
        buffer, value, reset = node.inputs
        maker = makers.get(value)
        if reset not in graph.inputs:  # the flag may be made only after the kernel has run
            continue
        if maker is None or len(readers[value]) > 1 or value in ends:
            continue
        if types[buffer].shape != types[value].shape:
            continue
        if any(o and (o in ends or o in readers) for o in node.outputs):
            continue
        op = get_declaration(graph, maker)
        if list(maker.outputs).index(value) in op.accumulates:
            buffers[value] = (buffer, reset)
            skipped.add(node)
    return buffers, skipped
