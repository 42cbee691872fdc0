"""The instructions of the `formula` kernel as IR: one vector loop each, chosen by a switch."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import elementary
from engine.kernels.vector_ir.rows import emit_loop
from engine.kernels.vector_ir.scalars import memory
from engine.kernels.vector_ir.vectors import I64
from engine.kernels.vocabulary.instructions import INSTRUCTION, SLOT, Primitive, assign_codes
from engine.kernels.vocabulary.row_program import Input, Program

_COPY: Any = ("in", 0)


def formula(target: Target, domain: str) -> Any:
    """formula(code, registers, operands, place, k): one instruction over k elements.

    code: an `INSTRUCTION`; registers: the first; operands: their addresses; place: the element of
    an operand the block starts at.  Arithmetic goes on to the end of the last vector.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        code, registers, operands, place, k = args

        def place_of(name: str) -> Any:
            at = I64(INSTRUCTION.members[name].offset)
            return b.gep(code, [at], source_etype=I64)

        def word(name: str) -> Any:
            return b.load(place_of(name), typ=I64)

        def register(name: str) -> Any:
            offset = b.mul(word(name), I64(SLOT))
            return b.gep(registers, [offset], source_etype=ir.IntType(8))

        def operand(kind: str) -> Any:
            slot = b.gep(operands, [word("first")], source_etype=I64)
            base = b.load(slot, typ=ir.PointerType())
            return b.gep(base, [place], source_etype=memory(kind))

        def move(what: str, kind: str) -> None:
            copy = Program.computing([Input(kind)], [(kind, _COPY)])
            if what == "load":
                emit_loop(b, copy, target, [operand(kind)], [register("register")], k)
            elif what == "store":
                emit_loop(b, copy, target, [register("register")], [operand(kind)], k)
            else:
                fill = Program.computing([Input(kind, "s")], [(kind, _COPY)])
                source = operand(kind)
                if what == "const":  # little-endian: the low bytes of the word come first
                    source = place_of("first")
                emit_loop(b, fill, target, [source], [register("register")], k, whole=True)

        table = assign_codes(domain)
        blocks = [b.append_basic_block(f"code{i}") for i in range(len(table))]
        done = b.append_basic_block("done")
        choice = b.switch(word("code"), done)
        saved = elementary.fused.set(target.fma)
        for (what, number), block in zip(table.items(), blocks, strict=True):
            choice.add_case(I64(number), block)
            b.position_at_end(block)
            if isinstance(what, Primitive):
                names = ("first", "second", "third")
                ins = [register(name) for name in names[: len(what.kinds)]]
                emit_loop(b, what.program, target, ins, [register("register")], k, whole=True)
            else:
                move(*what)
            b.branch(done)
        elementary.fused.reset(saved)
        b.position_at_end(done)
        return context.get_dummy_value()

    words = types.CPointer(types.int64)

    def op(typingctx: Any, code: Any, registers: Any, operands: Any, place: Any, k: Any) -> Any:
        return types.void(code, types.CPointer(types.uint8), words, types.int64, types.int64), emit

    return op
