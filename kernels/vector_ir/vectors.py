"""Vector IR that all intrinsics build on: loads, stores, loops, copies, transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ELEMENT_TYPES, FLOATS, ITEMSIZE
from engine.kernels.machine.target import Target

LINE = 64  # bytes of a cache line
SHARED = "linkonce_odr"  # linkage of functions that mean the same in all kernels
Grid = list[list[Any]]  # values of a tile or of sums: rows of columns
I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))

# numba's types of what is in memory: a boolean is a byte, and half floats are their bits.
_STEMS = {"float": "float", "half": "uint", "int": "int", "unsigned": "uint", "bool": "uint"}
NUMBA = {t.name: getattr(types, f"{_STEMS[t.kind]}{t.bits}") for t in ELEMENT_TYPES.values()}
LLVM = {T: ir.DoubleType() if ITEMSIZE[T] == 8 else ir.FloatType() for T in FLOATS}


class Vector(ir.VectorType):
    """The type of a vector, whose constants of equal elements are written in few letters.

    Element by element they would be two fifths of what LLVM reads.
    """

    def format_constant(self, value: Any) -> str:
        """Return the text of a constant of this type."""
        first = value[0]
        kind, text = first.type, first.get_reference()
        if any(x is not first and x.get_reference() != text for x in value):
            return str(super().format_constant(value))
        return "undef" if first.constant is ir.Undefined else f"splat ({kind} {text})"


def reserve(b: Any, kind: Any) -> Any:
    """Return a place for a value in the function's own memory, not yet set; a register later."""
    with b.goto_entry_block():
        return b.alloca(kind)


def splat(b: Any, value: Any, lanes: int) -> Any:
    """Return a vector of `lanes` copies of a scalar."""
    undef = ir.Constant(Vector(value.type, lanes), ir.Undefined)
    one = b.insert_element(undef, value, I32(0))
    return b.shuffle_vector(one, undef, ir.Constant(Vector(I32, lanes), [0] * lanes))


def load(b: Any, pointer: Any, vt: Any, align: int) -> Any:
    """Return an unaligned vector load; `pointer` is to elements."""
    value = b.load(b.bitcast(pointer, vt.as_pointer()), typ=vt)
    value.align = align
    return value


def settle(b: Any, value: Any) -> Any:
    """Return a loaded value that LLVM does not merge with a later select into a masked load.

    A masked load waits for its mask, and what the mask depends on comes from memory too.
    """
    frozen = ir.instructions.Instruction(b.block, value.type, "freeze", (value,))
    b._insert(frozen)
    return frozen


def store(b: Any, value: Any, pointer: Any, align: int, *, far: Any = None) -> None:
    """Store a vector to an address of this alignment; `pointer` is to elements.

    far: metadata that it has as one past the caches.
    """
    stored = b.store(value, b.bitcast(pointer, value.type.as_pointer()))
    stored.align = align
    if far is not None:
        stored.set_metadata("nontemporal", far)


def intrinsic(module: Any, name: str, result: Any, params: list[Any]) -> Any:
    """Get or declare an LLVM intrinsic."""
    declared = module.globals.get(name)
    return declared or ir.Function(module, ir.FunctionType(result, params), name)


def opaque(b: Any, values: list[Any], register: str, *, is_fence: bool = False) -> list[Any]:
    """Values of one type, through an empty piece of assembly that LLVM cannot look into.

    is_fence: nor does a load move past it.
    """
    kinds = [v.type for v in values]
    out = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
    places = ",".join([f"={register}"] * len(values) + [str(i) for i in range(len(values))])
    places += ",~{memory}" if is_fence else ""
    piece = ir.InlineAsm(ir.FunctionType(out, kinds), "", places, side_effect=is_fence)
    out = b.call(piece, values)
    if len(values) == 1:
        return [out]
    return [b.extract_value(out, i) for i in range(len(values))]


def first_lanes(b: Any, n: Any, lanes: int) -> Any:
    """Return the mask of the first n lanes, of all if there are no more.

    It is compared as wide as 32-bit elements are, for which it then needs no conversion.
    """
    iota = ir.Constant(Vector(I32, lanes), list(range(lanes)))
    return b.icmp_signed("<", iota, splat(b, b.trunc(n, I32), lanes))


def load_part(b: Any, pointer: Any, vt: Any, align: int, mask: Any) -> Any:
    """Return the lanes of a vector that a mask has; the others are 0."""
    args = [pointer, I32(align), mask, ir.Constant(vt, None)]
    return _call_masked(b, "load", vt, vt, args)


def store_part(b: Any, value: Any, pointer: Any, align: int, mask: Any) -> None:
    """Store the lanes of a vector that a mask has."""
    _call_masked(b, "store", ir.VoidType(), value.type, [value, pointer, I32(align), mask])


def _call_masked(b: Any, what: str, result: Any, vt: Any, args: list[Any]) -> Any:
    name = f"llvm.masked.{what}.v{vt.count}{vt.element.intrinsic_name}.p0"
    return b.call(intrinsic(b.module, name, result, [a.type for a in args]), args)


def get_internal(module: Any, name: str, params: list[Any]) -> tuple[Any, bool]:
    """Get or make an internal function of this module; the flag says it still needs a body."""
    existing = module.globals.get(name)
    if existing is not None:
        return existing, False
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), params), name)
    fn.linkage = "internal"
    return fn, True


def call_inlined(name: str, body: Callable[[Any], None]) -> Any:
    """Emit what an internal function does with all arguments, building it on first use."""

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        fn, fresh = get_internal(b.module, name, [a.type for a in args])
        if fresh:
            fn.attributes.add("alwaysinline")
            body(fn)
        b.call(fn, args)
        return context.get_dummy_value()

    return emit


def call_outlined(name: str, body: Callable[[Any], None]) -> Any:
    """Emit a call of a function of all arguments, which has a module of its own.

    A process builds it once, and LLVM optimises it once, for all kernels that call it.
    """
    built = list[Any]()

    def build(context: Any, kind: Any) -> Any:
        module = ir.Module(name)
        fn = ir.Function(module, kind, name)
        fn.linkage = SHARED
        fn.attributes.add("noinline")
        body(fn)
        library = context.codegen().create_library(name)
        context.post_lowering(module, library)
        library.add_ir_module(module)
        return library

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [a.type for a in args])
        if not built:
            built.append(build(context, kind))
        context.active_code_library.add_linking_library(built[0])
        b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), args)
        return context.get_dummy_value()

    return emit


def counted(
    b: Any, begin: Any, end: Any, step: int, body: Callable[[Any], None], *, rolled: bool = False
) -> Any:
    """Write a loop `for i in range(begin, end - step + 1, step): body(i)`; return i after it.

    rolled: LLVM writes its body once.
    """
    head, inside, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
    entry = b.block
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(begin, entry)
    b.cbranch(b.icmp_signed("<=", b.add(i, I64(step)), end), inside, done)
    b.position_at_end(inside)
    body(i)
    i.add_incoming(b.add(i, I64(step)), b.block)
    back = b.branch(head)
    if rolled:
        back.set_metadata("llvm.loop", _keep_rolled(b.module))
    b.position_at_end(done)
    return i


def _keep_rolled(module: Any) -> Any:
    """Return metadata of one loop: an own node, which begins with itself, as LLVM demands."""
    mark = ir.MetaDataString(module, "llvm.loop.unroll.disable")
    node = ir.values.MDValue(module, [], name=str(len(module.metadata)))
    node.operands = (node, module.add_metadata([mark]))
    return node


def copy(target: Target, T: str) -> Any:
    """copy(dst, src, n): dst[i] = src[i] for n elements; the ranges do not overlap."""
    lanes, vt = target.lanes(ITEMSIZE[T]), Vector(LLVM[T], target.lanes(ITEMSIZE[T]))
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, src, n = fn.args

        def vector(i: Any) -> None:
            store(b, load(b, b.gep(src, [i]), vt, ITEMSIZE[T]), b.gep(dst, [i]), ITEMSIZE[T])

        def scalar(i: Any) -> None:
            b.store(b.load(b.gep(src, [i]), typ=LLVM[T]), b.gep(dst, [i]))

        counted(b, counted(b, I64(0), n, lanes, vector), n, 1, scalar)
        b.ret_void()

    emit = call_inlined(f"copy_{T}_{lanes}", body)

    def op(typingctx, dst, src, n):
        return types.void(P, P, types.int64), emit

    return op


def copy_bytes(target: Target, T: str) -> Any:
    """copy_bytes(dst, src, n): dst[i] = src[i] for n bytes; the ranges do not overlap.

    For short runs, as windows of few channels are: the last bytes are moved as a whole that begins
    earlier, with some that are in place already, and not one by one.
    """
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        dst, src, n = fn.args
        for pointer in (dst, src):
            pointer.add_attribute("noalias")

        b = ir.IRBuilder(fn.append_basic_block("entry"))
        for size in sorted({target.vector, 16, 8, 4}, reverse=True):
            vt = Vector(ir.IntType(8), size) if size >= 16 else ir.IntType(8 * size)
            large, small = (fn.append_basic_block(name) for name in ("large", "small"))
            b.cbranch(b.icmp_signed(">=", n, I64(size)), large, small)
            b.position_at_end(large)

            def move(i: Any, b: Any = b, vt: Any = vt) -> None:
                store(b, load(b, b.gep(src, [i]), vt, 1), b.gep(dst, [i]), 1)

            counted(b, I64(0), b.sub(n, I64(1)), size, move)
            move(b.sub(n, I64(size)))
            b.ret_void()
            b.position_at_end(small)

        def single(i: Any) -> None:
            b.store(b.load(b.gep(src, [i]), typ=ir.IntType(8)), b.gep(dst, [i]))

        counted(b, I64(0), n, 1, single)
        b.ret_void()

    emit = call_inlined(f"copy_bytes_{T}_{target.vector}", body)

    def op(typingctx, dst, src, n):
        return types.void(P, P, types.int64), emit

    return op


def zero(target: Target, T: str) -> Any:
    """zero(dst, n): dst[i] = 0 for n elements."""
    lanes, element = target.lanes(ITEMSIZE[T]), LLVM.get(T, I16)
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, n = fn.args
        nil, one = (ir.Constant(t, None) for t in (Vector(element, lanes), element))
        done = counted(b, I64(0), n, lanes, lambda i: store(b, nil, b.gep(dst, [i]), ITEMSIZE[T]))
        counted(b, done, n, 1, lambda i: b.store(one, b.gep(dst, [i])) and None)
        b.ret_void()

    emit = call_inlined(f"zero_{T}_{lanes}", body)

    def op(typingctx, dst, n):
        return types.void(P, types.int64), emit

    return op


def zero_far(target: Target, T: str) -> Any:
    """zero_far(dst, n): dst[i] = 0 for n elements, whole cache lines by way of no cache.

    A line that is written to a cache is read from memory first.  For what no cache would keep until
    it is read again, these stores take a third of the time.  They reach other threads in order
    only after an atomic operation, as barriers are.
    """
    size, line = ITEMSIZE[T], LINE // ITEMSIZE[T]
    lanes = target.lanes(size)
    nil = ir.Constant(Vector(LLVM[T], lanes), [0.0] * lanes)
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, n = fn.args
        past = b.and_(b.ptrtoint(dst, I64), I64(LINE - 1))
        head = b.udiv(b.and_(b.sub(I64(LINE), past), I64(LINE - 1)), I64(size))
        head = b.select(b.icmp_signed("<", head, n), head, n)
        hint = fn.module.add_metadata([I32(1)])

        def whole(i: Any) -> None:
            for j in range(0, line, lanes):
                store(b, nil, b.gep(dst, [b.add(i, I64(j))]), target.vector, far=hint)

        def single(i: Any) -> None:
            b.store(LLVM[T](0.0), b.gep(dst, [i]))

        done = counted(b, I64(0), head, 1, single)
        done = counted(b, done, n, line, whole)
        counted(b, done, n, 1, single)
        b.ret_void()

    emit = call_inlined(f"zero_far_{T}_{lanes}", body)

    def op(typingctx, dst, n):
        return types.void(P, types.int64), emit

    return op


def transpose(target: Target, T: str) -> Any:
    """transpose(dst, ldd, src, lds): dst[j ldd + i] = src[i lds + j], lanes x lanes elements.

    log2(lanes) rounds of two-row interleaves (Eklundh 1972); the ranges do not overlap.
    """
    lanes = target.lanes(ITEMSIZE[T])
    vt = Vector(LLVM.get(T, ir.IntType(8 * ITEMSIZE[T])), lanes)
    P = types.CPointer(NUMBA[T])

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, ldd, src, lds = fn.args
        rows = [load(b, b.gep(src, [b.mul(lds, I64(i))]), vt, ITEMSIZE[T]) for i in range(lanes)]
        for j, row in enumerate(transposed(b, rows)):
            store(b, row, b.gep(dst, [b.mul(ldd, I64(j))]), ITEMSIZE[T])
        b.ret_void()

    emit = call_outlined(f"transpose_{T}_{lanes}", body)

    def op(typingctx, dst, ldd, src, lds):
        return types.void(P, types.int64, P, types.int64), emit

    return op


def transposed(b: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of as many vectors as each has lanes."""
    lanes, width = len(rows), 1
    while width < lanes:
        rows = _exchange(b, rows, width, lanes)
        width *= 2
    return rows


def _exchange(b: Any, rows: list[Any], width: int, lanes: int) -> list[Any]:
    """Swap the off-diagonal blocks of size `width` of each 2 width x 2 width block."""
    out = list(rows)
    low = [i if not i & width else i - width + lanes for i in range(lanes)]
    high = [i + width if not i & width else i + lanes for i in range(lanes)]
    mask_low, mask_high = (ir.Constant(Vector(I32, lanes), m) for m in (low, high))
    for i in range(lanes):
        if not i & width:
            x, y = rows[i], rows[i + width]
            out[i] = b.shuffle_vector(x, y, mask_low)
            out[i + width] = b.shuffle_vector(x, y, mask_high)
    return out


def edge_copy(module: Any, T: str) -> Any:
    """Return a function edge_copy(dst, ldd, src, lds, rows, n): dst[i ldd + j] = src[i lds + j].

    For few elements: no vectors.
    """
    P = LLVM[T].as_pointer()
    fn, fresh = get_internal(module, f"edge_copy_{T}", [P, I64, P, I64, I64, I64])
    if fresh:
        for attribute in ("noinline", "minsize", "optsize"):
            fn.attributes.add(attribute)
        dst, ldd, src, lds, rows, n = fn.args
        b = ir.IRBuilder(fn.append_basic_block("entry"))

        def row(i: Any) -> None:
            into, of = b.gep(dst, [b.mul(i, ldd)]), b.gep(src, [b.mul(i, lds)])

            def element(j: Any) -> None:
                b.store(b.load(b.gep(of, [j]), typ=LLVM[T]), b.gep(into, [j]))

            counted(b, I64(0), n, 1, element)

        counted(b, I64(0), rows, 1, row)
        b.ret_void()
    return fn
