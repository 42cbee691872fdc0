"""Running plans: pointers are bound once, then native threads walk over the steps.

This file needs numpy and the standard library only.  A resolver gives the addresses of compiled
kernels, and the caller gives the memory.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import zlib
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import replace

import numpy as np

from engine.base.aliases import Array, Bytes
from engine.base.element_types import widen_bfloats
from engine.base.errors import LabelError, StateError
from engine.distributed.group import RankGroup
from engine.plan import noise, plan_file
from engine.plan.collective import RankError, Sums, find_in_place, list_collectives
from engine.plan.context import (
    INDEX,
    LABEL,
    LENGTH,
    MOVE,
    RANDOM,
    STATUS,
    STEP,
    TILES,
    count_tile_words,
)
from engine.plan.lending import list_lent_inputs, list_lent_outputs
from engine.plan.plan import (
    ALIGN,
    FAULT,
    NOISE,
    PHASES,
    REGIONS,
    UNWRITTEN,
    Buffer,
    Phase,
    Plan,
    Port,
)
from engine.plan.verify import verify
from engine.runtime.arena import allocate, allocate_output, make_view
from engine.runtime.change_clock import ChangeClock, Span, merge_spans
from engine.runtime.constant_steps import MadeValues, share_made
from engine.runtime.team import LAUNCH, WORKER, Resolver, Team, get_team
from engine.runtime.timing import TIMED_KERNEL, Clock, Stopwatch
from engine.system import forks

_STEP_BYTES = STEP.dtype.itemsize
_PAGE = mmap.PAGESIZE  # what a process has memory in
MOST_COMPRESSED = 1 << 16  # bytes of region const that the compressed plan of a program holds, too
_BAD = {LABEL: "label", INDEX: "index", LENGTH: "length"}


def _make_constants(plan: Plan, known: MutableMapping[bytes, Bytes]) -> Bytes:
    """Return the region `const` of a plan; one that is known already if it has the same
    contents.
    """
    made = allocate(plan.compute_region_bytes("const"), what=f"plan {plan.name}: region const")
    for index, data in plan.constants:
        offset = plan.buffers[index].offset
        made[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return known.setdefault(hashlib.sha256(made.data).digest(), made)


def _find_pointers(plan: Plan, port: Port, pointers: tuple[Array, Array, Array]) -> Array:
    """Return the places of the arguments that point to an input or output in region io.

    pointers: of each argument that points to a buffer its place, the region and the offset there.
    """
    at, region, offset = pointers
    is_here = (region == REGIONS.index("io")) & (offset == plan.buffers[port.buffer].offset)
    places: Array = at[is_here].astype(np.intp)
    return places


class Before:
    """The running statistics of a model as they were before a run that has moved them."""

    __slots__ = ("_changes", "_copies", "_param", "_places")

    def __init__(
        self, param: Bytes | None, places: Sequence[Span], changes: ChangeClock | None
    ) -> None:
        """Copy them.

        param: region param, where they are.  places: the bytes that hold them.  changes: of the
            region; None if nobody notes them.
        """
        self._param, self._places, self._changes = param, places, changes
        self._copies = [] if param is None else [(a, b, param[a:b].copy()) for a, b in places]

    def put_back(self) -> None:
        """Make the running statistics what they were; they may move again after."""
        for begin, end, values in self._copies:
            assert self._param is not None, "there are copies of a region"
            self._param[begin:end] = values
        if self._changes is not None and self._copies:
            self._changes.note(self._places)


_UNMOVED = Before(None, (), None)  # of runs that move none


def list_written(plan: Plan, phases: Collection[Phase]) -> tuple[Span, ...]:
    """Return the bytes of region param that the steps of some phases change."""
    return merge_spans(
        (buffer.offset, buffer.offset + buffer.nbytes)
        for step in plan.steps
        if step.phase in phases
        for arg in step.args
        if arg.mode in ("w", "u") and arg.buffer >= 0
        for buffer in (plan.buffers[arg.buffer],)
        if buffer.region == "param"
    )


def list_moves(plan: Plan) -> tuple[Span, ...]:
    """Return the bytes of region param that change in other ways than by updates.

    Running statistics do.
    """
    return list_written(plan, ("fwd", "bwd"))


class BoundProgram:
    """A plan bound to code and memory.

    The plan is kept packed: only `plan` and who asks for it need its buffers and steps.

    inputs, outputs: the plan's, as views of region io.  `bind` replaces them.
    draws: whether the plan draws random numbers.
    nbytes: the bytes of the memory that belongs to this program alone.
    """

    def __init__(
        self,
        plan: Plan,
        resolve: Resolver,
        regions: Mapping[str, Bytes],
        constants: MutableMapping[bytes, Bytes] | None = None,
        file: bytes | None = None,
        group: RankGroup | None = None,
        changes: ChangeClock | None = None,
        made: MutableMapping[bytes, MadeValues] | None = None,
    ) -> None:
        """Bind a plan, which is verified.

        regions: the bytes of every region that the plan uses, except for `const`, and for `io` if
            this program is to have its own.
        constants: contents of the region `const` by their digest, which programs share.
        file: the plan as a file for its target, if that is at hand.
        group: the ranks among which collective steps sum (collective.py).
        changes: the changes of region param, which runs note; None if nobody notes them.
        made: what steps that run once make, by `digest_once`, which programs share.

        Raises:
            StateError: the plan has collective steps, and there is no group.
        """
        verify(plan)
        sums = list_collectives(plan)
        if sums and group is None:
            raise StateError(
                f"plan {plan.name}: step {sums[0].step} sums over the ranks of a group; expected "
                "a group"
            )
        self._sums = Sums(plan, sums, group) if sums and group is not None else None
        self._resolve, self._name, self._threads = resolve, plan.name, plan.threads
        self._target = plan.target
        with forks.compiling():
            code = resolve((LAUNCH, WORKER, *plan.kernels))  # at once, as compiling takes long
        get_team(plan.threads, resolve)  # so that a lack of threads shows here
        self._own = {"const": _make_constants(plan, {} if constants is None else constants)}
        if "io" not in regions:
            what = f"plan {plan.name}: region io"
            self._own["io"] = allocate(plan.compute_region_bytes("io"), what=what)
        self._once, self.made = plan.once, share_made(plan, changes, {} if made is None else made)
        always = plan.steps[plan.once :]
        self._runners = 1 if all(step.alone for step in always) else plan.threads
        self._memory: dict[str, Bytes] = {}
        self._write(plan, code)
        self._lendable, self._borrowable = (
            {port.name: _find_pointers(plan, port, self._pointers) for port in ports}
            for ports in (list_lent_outputs(plan), list_lent_inputs(plan))
        )
        self._borrowed: dict[str, Array] = {}
        self._moved, self._changes = list_moves(plan), changes
        self._written = list_written(plan, PHASES)
        self._ports = tuple(
            {p.name: (b.offset, b.dtype, p.shape) for p in side for b in (plan.buffers[p.buffer],)}
            for side in (plan.inputs, plan.outputs)
        )
        names = [p.name for p in plan.inputs]
        self._reports, self.draws = FAULT in names, NOISE in names
        # Constants are in their region, so zeros stand for them here.  To compress them took 87 ms
        # for int8 MobileNetV2, whose weights became hardly smaller: they were in memory once more.
        if plan.compute_region_bytes("const") > MOST_COMPRESSED:
            blank = tuple((index, bytes(len(data))) for index, data in plan.constants)
            file = plan_file.to_bytes([replace(plan, constants=blank)], plan.target)
        self._packed = zlib.compress(file or plan_file.to_bytes([plan], plan.target), 1)
        self.nbytes = len(self._packed) + sum(
            a.nbytes
            for a in (self._args, self._table, self._tiles, *self._pointers, *self._own.values())
        )
        self.bind(regions)

    @property
    def threads(self) -> int:
        """The number of threads that run it."""
        return self._threads

    @property
    def plan(self) -> Plan:
        """The plan, read again."""
        (plan,) = plan_file.from_bytes(zlib.decompress(self._packed), self._target)
        if plan.compute_region_bytes("const") <= MOST_COMPRESSED:
            return plan
        places = ((n, plan.buffers[n].offset, len(data)) for n, data in plan.constants)
        contents = self._own["const"]
        constants = tuple((n, contents[at : at + size].tobytes()) for n, at, size in places)
        return replace(plan, constants=constants)

    def _write(self, plan: Plan, code: Mapping[str, int]) -> None:
        """Write the table of steps and their arguments, the pointers among them as 0.

        Of each pointer is kept where it is among the arguments, its region and its offset there.
        """
        words: list[bytes] = []
        places, pointers = [], []
        count = 0
        still = find_in_place(plan)
        for n, step in enumerate(plan.steps):
            places.append(8 * count)
            for k, a in enumerate(step.args, count):
                if a.buffer >= 0:
                    b = plan.buffers[a.buffer]
                    pointers.append((k, REGIONS.index(b.region), b.offset))
            words.append(bytes(8 * len(step.args)))
            consts = (0, *step.consts[1:]) if n in still else step.consts
            words += (struct.pack("<d" if isinstance(c, float) else "<q", c) for c in consts)
            count += len(step.args) + len(step.consts)
        self._args = np.frombuffer(b"".join(words) or bytes(8), np.int64).copy()
        at, region, offset = zip(*pointers, strict=True) if pointers else ((), (), ())
        self._pointers = (
            np.array(at, np.int32), np.array(region, np.uint8), np.array(offset, np.int64)
        )  # fmt: skip
        self._table = np.zeros(len(plan.steps), STEP.dtype)
        self._table_at = self._table.ctypes.data  # asking takes longer than a small step
        self._table["kernel"] = [code[s.kernel] for s in plan.steps]
        self._table["arguments"] = self._args.ctypes.data + np.array(places, np.int64)
        self._table["barrier"] = [s.barrier for s in plan.steps]
        self._table["alone"] = [s.alone for s in plan.steps]
        self._table["group"] = [s.group for s in plan.steps]
        self._write_tiles(plan, places)

    def _write_tiles(self, plan: Plan, places: Sequence[int]) -> None:
        """Write how the steps of groups move from tile to tile, and arguments for each thread.

        places: for every step, the byte at which its arguments begin.
        """
        tiled = [(n, step) for n, step in enumerate(plan.steps) if step.tiles]
        rooms = [count_tile_words(len(s.args), len(s.consts), plan.threads) for _, s in tiled]
        self._tiles = np.zeros(sum(rooms), np.int64)
        at = 0
        for (n, step), room in zip(tiled, rooms, strict=True):
            count, stride = len(step.args), len(step.args) + len(step.consts)
            own = at + TILES.size + MOVE.size * count
            head = self._tiles[at : at + TILES.size].view(TILES.dtype)
            head["count"], head["numbered"] = step.tiles, step.numbered
            head["pointers"], head["stride"] = count, stride
            head["own"] = self._tiles.ctypes.data + 8 * own
            moves = self._tiles[at + TILES.size : own].view(MOVE.dtype)
            moves["thread"] = [a.thread for a in step.args]
            moves["tile"] = [a.move(step.numbered) for a in step.args]
            given = self._args[places[n] // 8 : places[n] // 8 + stride]
            self._tiles[own : at + room] = np.tile(given, plan.threads)
            self._table["tiles"][n] = self._tiles.ctypes.data + 8 * at
            at += room

    def _get_team(self) -> Team:
        """Return the team that runs the plan, looked up at every run: a forked child has its
        own.
        """
        return get_team(self._threads, self._resolve)

    def bind(self, regions: Mapping[str, Bytes]) -> None:
        """Let every pointer point to its bytes in these regions, and inputs and outputs with it."""
        memory = {**regions, **self._own, "made": self.made.memory}
        bases = np.array([memory[r].ctypes.data if r in memory else 0 for r in REGIONS], np.int64)
        at, region, offset = self._pointers
        self._args[at] = bases[region] + offset
        if self._memory:  # another one before, whose contents may have been others
            self.made.forget()
        self._memory = memory  # keeps the bytes alive
        self._borrowed.clear()
        self._changing = [
            (at, at + bytes_.nbytes)
            for region, bytes_ in memory.items()
            if region not in UNWRITTEN and bytes_.nbytes
            for at in (int(bases[REGIONS.index(region)]),)
        ]
        self.inputs, self.outputs = (
            {name: make_view(memory["io"], *place) for name, place in side.items()}
            for side in self._ports
        )
        status = self.inputs.pop(FAULT, np.zeros(STATUS.size, np.int64))
        self._status = status.view(STATUS.dtype)
        self._status_at = self._status.ctypes.data
        self._random = self.inputs.pop(NOISE, np.zeros(RANDOM.size, np.int64)).view(RANDOM.dtype)

    def fill(self, names: Iterable[str], arrays: Iterable[Array]) -> None:
        """Set inputs of the next run.

        The run reads large arrays where they are, instead of a copy, if it can: they must not
        change until it has ended.  They are kept alive until then.

        names: of some inputs.  arrays: their values, of the shapes and element types of `inputs`.
        """
        inputs = self.inputs
        if not self._borrowable:
            for name, array in zip(names, arrays, strict=True):
                inputs[name][...] = array
            return
        self._give_back()
        for name, array in zip(names, arrays, strict=True):
            if name not in self._borrowable or not self._borrow(name, array):
                inputs[name][...] = array

    def _borrow(self, name: str, array: Array) -> bool:
        """Let the next run read an input where the caller has it; return False if it cannot."""
        place, flags = self.inputs[name], array.flags
        if not (flags.c_contiguous and flags.aligned):
            return False
        if array.dtype != place.dtype or array.shape != place.shape:
            return False
        begin = array.ctypes.data
        end = begin + place.nbytes
        # A kernel may load a whole register that begins at the last element, which must not reach
        # a page that this process does not have.
        if -end % _PAGE < ALIGN:
            return False
        # The caller's array may be of our own memory, which the run changes.
        if any(begin < last and first < end for first, last in self._changing):
            return False
        self._borrowed[name] = array
        self._args[self._borrowable[name]] = begin
        return True

    def _give_back(self) -> None:
        """Let runs read all inputs from `inputs` again."""
        for name in self._borrowed:
            self._args[self._borrowable[name]] = self.inputs[name].ctypes.data
        self._borrowed.clear()  # not before nothing points there any more

    @property
    def lends(self) -> bool:
        """True if some outputs are so large that `lend_outputs` lets runs write them elsewhere."""
        return bool(self._lendable)

    def lend_outputs(self, names: Collection[str]) -> dict[str, Array]:
        """Let runs write the large ones of some outputs to new arrays; return these.

        `take_back_outputs` ends that.  Until then `outputs` does not have them.
        """
        lent = dict[str, Array]()
        for name, places in self._lendable.items():
            if name not in names:
                continue
            own = self.outputs[name]
            lent[name] = made = allocate_output(own.dtype, own.shape)
            self._args[places] = made.ctypes.data
        return lent

    def take_back_outputs(self) -> None:
        """Let runs write all outputs to `outputs` again."""
        for name, places in self._lendable.items():
            self._args[places] = self.outputs[name].ctypes.data

    def run(self, step: int = 0, seed: int | None = None, watch: Stopwatch | None = None) -> Before:
        """Run all steps on what is in `inputs`; results are in `outputs` until the next run.

        step, seed: decide which random numbers are drawn; the default seed is the process's.
        watch: a watch that records when each step of this program runs.

        Returns what running statistics were before, for those who refuse what the run has found.

        Raises:
            LabelError: a class label, an index or a length is out of range.  The run has ended
                there, before a gradient or parameter was changed; running statistics that have
                moved are put back.
        """
        before = _UNMOVED
        if self._moved:
            before = Before(self._memory.get("param"), self._moved, self._changes)
        try:
            self._run(step, seed, self._table if watch is None else watch.table)
        except BaseException:
            before.put_back()
            raise
        finally:
            if self._borrowed:
                self._give_back()
        return before

    def _run(self, step: int, seed: int | None, table: Array) -> None:
        """Do the same as `run`; if this raises, running statistics may have moved."""
        self._prepare(step, seed)
        if self._sums is None:
            if self._once:
                self.made.renew(self._run_once)
            self._run_steps(table, self._once, len(table) - self._once)
        else:
            for _ in self._run_stages(table, self._sums.stages, self._sums):
                pass
        if self._reports and self._status["kind"][0]:
            raise self._explain_bad_data([int(word) for word in self._status.view(np.int64)])

    def _explain_bad_data(self, words: Sequence[int], where: str = "") -> LabelError:
        """Return the error for bad data; words: its status.  where: the rank that has met it."""
        kind, position, value, limit = words
        low = -limit if kind == INDEX else 0
        advice = ""
        if kind == LABEL and value < 0:  # as PyTorch marks samples that do not count, with -100
            advice = f"; a loss made with ignore_index={value} ignores such samples"
        return LabelError(
            f"{where}plan {self._name}: {_BAD[kind]} {value} at position {position} is outside "
            f"[{low}, {limit}){advice}"
        )

    def _run_stages(
        self, table: Array, units: Iterable[tuple[int, int]], sums: Sums
    ) -> Iterator[int]:
        """Run a table in units, with what belongs between them; see `Sums.run`."""

        def run_native(first: int, count: int) -> None:
            self._run_steps(table, first, count)

        try:
            yield from sums.run(units, run_native, self.read_memory, self._status)
        except RankError as error:
            raise self._explain_bad_data(error.words, f"rank {error.rank}: ") from None

    def _prepare(self, step: int, seed: int | None) -> None:
        """Set what a run begins with besides `inputs`, and note what it changes."""
        if self._changes is not None and self._written:
            self._changes.note(self._written)
        if self._reports:
            self._status["kind"] = 0
        if self.draws:
            self._random["seed"] = noise.get_seed() if seed is None else seed
            self._random["step"] = step

    def run_stepwise(self, step: int = 0, seed: int | None = None) -> Iterator[int]:
        """Do what `run` does, one step of the plan each time that the iterator is advanced.

        A group is one step here.  Yields the number of steps that are done, 0 at first; in
        between, `read_memory` can be called.
        """
        self._prepare(step, seed)
        if self._sums is None:
            for i, count in self._list_units():
                yield i
                self._run_steps(self._table, i, count)
        else:
            yield from self._run_stages(self._table, self._list_units(), self._sums)
        yield len(self._table)

    def _list_units(self) -> Iterator[tuple[int, int]]:
        """Yield the first step and the number of steps of every group, and of every step in
        none.
        """
        i = 0
        while i < len(self._table):
            count = max(int(self._table["group"][i]), 1)
            yield i, count
            i += count

    def read_memory(self, buffer: Buffer) -> Array:
        """Return the values of a buffer of the plan as they are now, as an array.

        It is a view; of bfloat16, which NumPy does not have, a copy in float32.  Tensors that the
        plan holds channels-last have their elements in that order.
        """
        is_bfloat = buffer.dtype == "bf16"
        dtype = "u16" if is_bfloat else buffer.dtype
        values = make_view(self._memory[buffer.region], buffer.offset, dtype, buffer.shape)
        return widen_bfloats(values) if is_bfloat else values

    def _run_steps(self, table: Array, first: int, count: int, runners: int = 0) -> None:
        """Run some steps of a table with all threads; with `runners` if that is not 0."""
        base = self._table_at if table is self._table else table.ctypes.data
        at = base + first * _STEP_BYTES
        self._get_team().run(at, count, self._status_at, runners or self._runners)

    def _run_once(self, first: int, count: int) -> None:
        """Run some of the steps that run once."""
        self._run_steps(self._table, first, count, self._threads)

    def make_stopwatch(self, *, processor_time: bool = False) -> Stopwatch:
        """Return a stopwatch for this program, which `run` takes.

        processor_time: count the time that each thread has run, instead of the time of day.

        Raises:
            EngineError: the kernel that times is neither shipped nor can be compiled; or this
                system has no clock for `processor_time`.
        """
        timed = self._resolve((TIMED_KERNEL,))[TIMED_KERNEL.symbol]
        return Stopwatch(self._table, self._threads, timed, Clock(processor_time))
