"""ThreadSanitizer for kernels: their bitcode with a call before every access of memory.

gcc instruments the C runtime, and it does not see kernels: what a team of threads does in
a step, and the executor that keeps it in order, would not be seen.  So the calls that a compiler
makes with -fsanitize=thread are put into the kernels' IR here, line by line, as in

    %x = load i64, ptr %p, align 8       call void @__tsan_read_range(ptr %p, i64 8), then the load
    store atomic i64 %v, ptr %p seq_cst  call void @__tsan_atomic64_store(ptr %p, i64 %v, i32 5)

It knows what the kernels of targets without masked accesses hold, and refuses everything else.

Source: LLVM, compiler-rt/include/sanitizer/tsan_interface.h and tsan_interface_atomic.h.
"""

from __future__ import annotations

import re

import llvmlite.binding as llvm

_ORDERS = {"monotonic": 0, "acquire": 2, "release": 3, "acq_rel": 4, "seq_cst": 5}
_BYTES = {"ptr": 8, "float": 4, "double": 8, "half": 2, "bfloat": 2}
_TYPE = r"(?P<type><[^>]*>|[\w]+)"
_POINTER = r"ptr (?P<at>[%@][\w.$\"-]+)"
_LOAD = re.compile(rf"(?P<to>%\S+) = load {_TYPE}, {_POINTER}[,\s]")
_STORE = re.compile(rf"store {_TYPE} .*, {_POINTER}, align")
_ATOMIC_LOAD = re.compile(rf"(?P<to>%\S+) = load atomic i64, {_POINTER} (?P<order>\w+)")
_ATOMIC_STORE = re.compile(rf"store atomic i64 (?P<value>\S+), {_POINTER} (?P<order>\w+)")
_ATOMIC_ADD = re.compile(
    rf"(?P<to>%\S+) = atomicrmw add {_POINTER}, i64 (?P<value>\S+) (?P<order>\w+)"
)
_ATOMIC_EXCHANGE = re.compile(
    rf"(?P<to>%\S+) = atomicrmw xchg {_POINTER}, i64 (?P<value>\S+) (?P<order>\w+)"
)
_ATOMIC_REPLACE = re.compile(
    rf"(?P<to>%\S+) = cmpxchg {_POINTER}, i64 (?P<old>\S+), i64 (?P<value>\S+) (?P<order>\w+)"
)
_ACCESS = re.compile(r"\b(load|store|atomicrmw|cmpxchg|fence)\b")
_DECLARATIONS = """
declare void @__tsan_read_range(ptr, i64)
declare void @__tsan_write_range(ptr, i64)
declare i64 @__tsan_atomic64_load(ptr, i32)
declare void @__tsan_atomic64_store(ptr, i64, i32)
declare i64 @__tsan_atomic64_fetch_add(ptr, i64, i32)
declare i64 @__tsan_atomic64_exchange(ptr, i64, i32)
declare i64 @__tsan_atomic64_compare_exchange_val(ptr, i64, i64, i32, i32)
"""


def instrument(bitcode: bytes, *, weak: bool = False) -> bytes:
    """The bitcode of a kernel that tells ThreadSanitizer what it does with memory.

    weak: its atomic operations order nothing, so that whatever they were to order is a race.

    Raises:
        ValueError: it holds an access that is not known here.
    """
    context = llvm.create_context()
    text = str(llvm.parse_bitcode(bitcode, context))
    text = "\n".join(_instrument_line(line, weak) for line in text.splitlines()) + _DECLARATIONS
    return bytes(llvm.parse_assembly(text, context).as_bitcode())


def _instrument_line(line: str, weak: bool) -> str:
    code = line.strip()
    if weak:
        code = re.sub(r"\b(acquire|release|acq_rel|seq_cst)\b", "monotonic", code)
    if match := _ATOMIC_LOAD.match(code):
        to, at, order = match["to"], match["at"], _ORDERS[match["order"]]
        return f"  {to} = call i64 @__tsan_atomic64_load(ptr {at}, i32 {order})"
    if match := _ATOMIC_STORE.match(code):
        at, value, order = match["at"], match["value"], _ORDERS[match["order"]]
        return f"  call void @__tsan_atomic64_store(ptr {at}, i64 {value}, i32 {order})"
    for pattern, what in ((_ATOMIC_ADD, "fetch_add"), (_ATOMIC_EXCHANGE, "exchange")):
        if match := pattern.match(code):
            arguments = f"ptr {match['at']}, i64 {match['value']}, i32 {_ORDERS[match['order']]}"
            return f"  {match['to']} = call i64 @__tsan_atomic64_{what}({arguments})"
    if match := _ATOMIC_REPLACE.match(code):
        to, old, order = match["to"], match["old"], _ORDERS[match["order"]]
        arguments = f"ptr {match['at']}, i64 {old}, i64 {match['value']}, i32 {order}, i32 {order}"
        before, is_old, pair = (f'%"{name} {to[1:]}"' for name in ("before", "is", "pair"))
        return f"""
  {before} = call i64 @__tsan_atomic64_compare_exchange_val({arguments})
  {is_old} = icmp eq i64 {before}, {old}
  {pair} = insertvalue {{i64, i1}} undef, i64 {before}, 0
  {to} = insertvalue {{i64, i1}} {pair}, i1 {is_old}, 1"""
    for pattern, what in ((_LOAD, "read"), (_STORE, "write")):
        if match := pattern.match(code):
            size = _count_bytes(match["type"])
            return f"  call void @__tsan_{what}_range(ptr {match['at']}, i64 {size})\n{line}"
    words = re.sub(r"[%@!][\w.]+", "", code)  # without names
    if _ACCESS.search(words) or re.search(r"@llvm\.(masked|mem\w+)\.", code):
        raise ValueError(f"an access that is not known: {code}")
    return line


def _count_bytes(kind: str) -> int:
    """The size of a type."""
    if match := re.fullmatch(r"<(\d+) x (\w+)>", kind):
        return int(match[1]) * _count_bytes(match[2])
    if match := re.fullmatch(r"i(\d+)", kind):
        return -(-int(match[1]) // 8)
    return _BYTES[kind]
