"""States that crashes leave of files: `python -m tests.support.crashes [NAME...]` tries all.

Each case prepares a folder, records an operation on the simulated disk, and looks at what each
state loads as.  Then processes do the same and are killed, each before another call of the system.
Prints a table: operations, crashes, the states of files they can leave that differ, how many of
them are old, new or refused; and the same of the kills.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.checkpoint import safetensors, storage
from engine.checkpoint.storage import Checkpoint
from engine.errors import EngineError
from engine.federated.folder import Folder
from engine.federated.message import Message
from engine.graphs.io import onnx_io
from engine.lora.adapter import Adapter
from engine.system import cache, files
from engine.trainer.runs import RunFolder
from engine.training import plan_cache
from tests.support.simulated_disk import Disk

F32 = np.float32
WIDTH = 300  # of the model; its constant is large enough to go to external data

Load = Callable[[Path], str]  # "old" or "new"; or an EngineError


@dataclass(frozen=True)
class Case:
    """Something that is written.

    before: makes the folder as it is before; nothing if there is to be nothing.
    write: what is interrupted.
    load: what a folder loads as.
    absent: whether there may be nothing, before.
    """

    before: Callable[[Path], object]
    write: Callable[[Path], object]
    load: Load


def forward(scale: float) -> onnx.ModelProto:
    """y = scale (x wᵀ) + shift.

    x is f32[n, 4], w f32[WIDTH, 4]; all values are `scale`.
    """
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], transB=1, name="fc"),
        helper.make_node("Mul", ["h", "scale"], ["z"], name="mul"),
        helper.make_node("Add", ["z", "shift"], ["y"], name="add"),
    ]
    shapes = {"w": (WIDTH, 4), "scale": (WIDTH,), "shift": (1,)}
    arrays = {name: np.full(shape, scale, F32) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_artifacts(scale: float, optimizer: OptimType, *, external: bool) -> Callable[[Path], None]:
    """Make artifacts in a folder."""

    def make(folder: Path) -> None:
        generate_artifacts(
            forward(scale),
            requires_grad=["w"],
            loss=LossType.MSELoss,
            optimizer=optimizer,
            artifact_directory=folder,
            external_data=external,
        )

    return make


def make_foreign(folder: Path) -> None:
    """Return artifacts that do not name their set, as earlier versions wrote them."""
    make_artifacts(1.0, OptimType.AdamW, external=False)(folder)
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        del model.metadata_props[:]
        path.write_bytes(model.SerializeToString())
    content = storage.read(folder / "checkpoint")
    plain = Checkpoint(trainable=content.trainable, frozen=content.frozen)
    storage.write(plain, folder / "checkpoint", artifact=True)


def find_trained(folder: Path) -> str:
    """Return which of two sets a folder trains as, by all its files."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    train, evaluation = folder / "training_model.onnx", folder / "eval_model.onnx"
    module = Module(train, state, evaluation, threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    actual = {float(state.parameters["w"].data[0, 0])}
    for model in (module.session.training, module.session.evaluation):
        assert model is not None
        values = model.graph.initializers
        actual |= {float(v) for name in ("scale", "shift") for v in np.unique(values[name])}
    actual |= {
        1.0 if len(optimizer.model.lay_out_states().states) == 2 else 2.0
    }  # AdamW has two, SGD none
    assert len(actual) == 1, f"{folder} trains as a mixture of {actual}"
    return _read_word(actual.pop())


def _read_word(value: float) -> str:
    return {1.0: "old", 2.0: "new"}[value]


def save_checkpoint(value: float, threshold: int) -> Callable[[Path], None]:
    """Save a checkpoint; threshold: bytes from which on it has external data."""

    def write(folder: Path) -> None:
        content = Checkpoint({"w": np.full(100, value, F32)}, properties={"epoch": int(value)})
        storage.write(content, folder / "checkpoint", external_threshold=threshold)

    return write


def find_loaded(folder: Path) -> str:
    """Return which of two checkpoints is in a folder."""
    kept = storage.read(folder / "checkpoint")
    (value,) = {*np.unique(kept.trainable["w"]), float(kept.properties["epoch"])}  # type: ignore[arg-type]  # arrays
    return _read_word(float(value))


def run(step: int) -> Callable[[Path], None]:
    """Add a checkpoint to the folder of a run, which keeps one besides the best."""

    def write(folder: Path) -> None:
        run_folder = RunFolder(folder / "run")
        with run_folder.locked():
            run_folder.describe({"model": "m"})
            run_folder.save(
                step, {"step": step}, save_checkpoint(step, 1 << 30), is_best=False, keep=1
            )

    return write


def run_is_at(folder: Path) -> str:
    """Return the step of the last checkpoint of a run."""
    run_folder = RunFolder(folder / "run")
    last = run_folder.last
    if last is None:
        raise EngineError("no run")
    position = run_folder.position(last)
    assert find_loaded(last) == _read_word(position["step"])
    return _read_word(position["step"])


def export_model(scale: float, *, external: bool) -> Callable[[Path], None]:
    """Write a model, with its initializers in one file beside it or in it."""

    def write(folder: Path) -> None:
        with mock.patch.object(onnx_io, "EXTERNAL_BYTES", 1 if external else 2**31):
            onnx_io.save(onnx_io.load(forward(scale)), folder / "model.onnx")

    return write


def find_model(folder: Path) -> str:
    """Return which of two models it is."""
    values = onnx_io.load(folder / "model.onnx").initializers
    (value,) = {float(v) for name in ("w", "scale", "shift") for v in np.unique(values[name])}
    return _read_word(value)


def write_prepared(value: int) -> Callable[[Path], object]:
    """Write prepared plans."""
    return lambda folder: plan_cache.write_prepared(
        os.fspath(folder / plan_cache.PREPARED),
        plan_cache.PreparedModels("1", "s", {"d": "m"}, [("k", "t", 1)]),
        {"ab" * 32: b"%d" % value * 500},
    )


def find_prepared(folder: Path) -> str:
    """Return which of two prepared plans are there; damaged ones are made again."""
    actual_value = plan_cache.Prepared(os.fspath(folder / plan_cache.PREPARED)).get("ab" * 32)
    if actual_value is None:
        raise EngineError("nothing is prepared")
    return _read_word(int(chr(actual_value[0])))


def save_adapter(value: float) -> Callable[[Path], None]:
    """Save an adapter whose values and scale go together."""
    tensors = {"fc.lora_A.weight": np.full((1, 4), value, F32)}
    tensors["fc.lora_B.weight"] = np.full((3, 1), value, F32)
    return lambda folder: Adapter(tensors, 1, alpha=value).save(folder / "adapter")


def find_adapter(folder: Path) -> str:
    """Return which of two adapters is there."""
    loaded = Adapter.load(folder / "adapter")
    assert loaded.alpha is not None
    (value,) = {loaded.alpha, *(float(v) for t in loaded.tensors.values() for v in np.unique(t))}
    return _read_word(value)


def write_cached(value: int) -> Callable[[Path], None]:
    """Write a file of the cache."""
    return lambda folder: cache.write(_make_entry(folder), b"%d" % value * 500)


def _make_entry(folder: Path) -> cache.Entry:
    return cache.Entry(folder / "kernels" / "k", "o", "k")


def find_cached(folder: Path) -> str:
    """Return what the cache returns; damaged entries are made again."""
    actual_content = cache.read(_make_entry(folder))
    if actual_content is None:
        raise EngineError("not in the cache")
    return _read_word(int(chr(actual_content[0])))


def _request(value: float) -> Message:
    return Message("train", "0" * 16, 1, {"w": np.full(100, value, F32)}, {"value": value})


def ask_again(folder: Path) -> None:
    """The server of a federation that started over asks again; an answer of before is there."""
    Folder(folder / "device").ask(_request(2.0))


def make_answered(folder: Path) -> None:
    """A request and its answer."""
    place = Folder(folder / "device")
    place.ask(_request(1.0))
    request = _request(1.0)
    numbers = {"num-examples": 1}
    arrays = {"w": np.full(100, 1.0, F32)}
    place.put(Message("trained", "0" * 16, 1, arrays, metrics=numbers), request)


def find_request(folder: Path) -> str:
    """Return the request that is there; an answer that is there belongs to it."""
    place = Folder(folder / "device")
    (path,) = (folder / "device").glob("*train.safetensors")
    values = safetensors.read(os.fspath(path))[0]["w"]
    (value,) = {float(v) for v in np.unique(values)}
    answer = place.answer_to(_request(value))
    if answer is not None:
        assert float(answer.arrays["w"][0]) == value, "an answer to another request"
    return _read_word(value)


def report(value: int) -> Callable[[Path], None]:
    """Write a file in one step, as reports, configurations and histories are."""
    text = json.dumps({"value": value, "more": "x" * 400})
    return lambda folder: files.write(os.fspath(folder / "report"), [text.encode()])


def report_is(folder: Path) -> str:
    """Return which of two files it is."""
    actual_value: int = json.loads(files.read(os.fspath(folder / "report"), "report"))["value"]
    return _read_word(actual_value)


def _do_nothing(_: Path) -> None:
    """There is nothing before."""


_OLD, _NEW = (1.0, OptimType.AdamW), (2.0, OptimType.SGD)
CASES = {
    "artifacts": Case(
        make_artifacts(*_OLD, external=False), make_artifacts(*_NEW, external=False), find_trained
    ),
    "artifacts, external data": Case(
        make_artifacts(*_OLD, external=True), make_artifacts(*_NEW, external=True), find_trained
    ),
    "artifacts, the first": Case(_do_nothing, make_artifacts(*_NEW, external=False), find_trained),
    "artifacts over foreign ones": Case(
        make_foreign, make_artifacts(*_NEW, external=False), find_trained
    ),
    "checkpoint": Case(save_checkpoint(1, 1 << 30), save_checkpoint(2, 1 << 30), find_loaded),
    "checkpoint, the first": Case(_do_nothing, save_checkpoint(2, 1 << 30), find_loaded),
    "checkpoint, external data": Case(save_checkpoint(1, 0), save_checkpoint(2, 0), find_loaded),
    "checkpoint, one file to two": Case(
        save_checkpoint(1, 1 << 30), save_checkpoint(2, 0), find_loaded
    ),
    "checkpoint, two files to one": Case(
        save_checkpoint(1, 0), save_checkpoint(2, 1 << 30), find_loaded
    ),
    "run": Case(run(1), run(2), run_is_at),
    "run, the first": Case(_do_nothing, run(2), run_is_at),
    "export": Case(export_model(1, external=False), export_model(2, external=False), find_model),
    "export, external data": Case(
        export_model(1, external=True), export_model(2, external=True), find_model
    ),
    "prepared plans": Case(write_prepared(1), write_prepared(2), find_prepared),
    "adapter": Case(save_adapter(1), save_adapter(2), find_adapter),
    "cache": Case(write_cached(1), write_cached(2), find_cached),
    "request to a device": Case(make_answered, ask_again, find_request),
    "file": Case(report(1), report(2), report_is),
}
KILLED = 9  # how a process ends that is killed
FORGETS = ("cache",)  # what is lost there is made again: nothing is synced


@dataclass(frozen=True)
class Result:
    """Counts of one case.

    crashes: how many moments, choices of names and losses of data.
    kinds: how many of the states that differ were old, new and refused.
    """

    operations: int
    crashes: int
    kinds: Counter[str]


def try_states(name: str, folder: Path) -> Result:
    """Try every state of a case.

    Raises:
        AssertionError: a state is a mixture, ends in no `EngineError`, or what a call has written
            is not there when it has returned.
    """
    case = CASES[name]
    place, left = folder / "disk", folder / "left"
    place.mkdir()
    case.before(place)
    with Disk(place) as disk:
        case.write(place)
    kinds = Counter[str]()
    for state in disk.list_states():
        state.write(left)
        where = f"after {state.moment} operations, {state.how}: {sorted(state.files)}"
        kind = _name_kind(case, left, where)
        kinds[kind] += 1
        if state.returned and name not in FORGETS:
            assert kind == "new", f"{name}: {kind} after the call had returned ({state.how})"
    return Result(len(disk.log), disk.played, kinds)


def kill_writers(name: str, folder: Path, every: int = 1) -> Counter[str]:
    """Kill processes that write, one before each call of the system by which something changes.

    every: of how many such calls one is tried.

    Returns how many left the old, the new, or what is refused.

    Raises:
        AssertionError: a mixture was left, or what ends in no `EngineError`.
    """
    case, kinds = CASES[name], Counter[str]()
    for nth in itertools.count(1, every):
        place = folder / str(nth)
        place.mkdir()
        case.before(place)
        with warnings.catch_warnings():  # of threads: the child only writes
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _write_and_die(case, place, nth)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, KILLED), f"{name}: the process that writes ended with {status}"
        kinds[_name_kind(case, place, f"killed before call {nth}")] += 1
        if status == 0:
            return kinds
    raise AssertionError


def _write_and_die(case: Case, place: Path, nth: int) -> None:
    """In a process of its own: write, and end before the nth call that changes something."""
    count = itertools.count(1)

    def die_at(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(count) == nth:
                os._exit(KILLED)
            return function(*args, **kwargs)

        return call

    try:
        for call in ("replace", "rename", "unlink", "mkdir", "rmdir", "fsync", "open", "ftruncate"):
            setattr(os, call, die_at(getattr(os, call)))
        case.write(place)
        os._exit(0)
    finally:
        os._exit(1)


def _name_kind(case: Case, folder: Path, where: str) -> str:
    try:
        return case.load(folder)
    except EngineError:
        return "refused"
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def main(names: Sequence[str]) -> None:
    """Try the cases of these names, or all, and print the table."""
    print("| what is written | operations | crashes | old, new, refused | kills: the same |")
    print("|---|---|---|---|---|")
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            states, kills = try_states(name, Path(folder)), kill_writers(name, Path(other))
        words = [
            ", ".join(str(kinds[kind]) for kind in ("old", "new", "refused"))
            for kinds in (states.kinds, kills)
        ]
        row = [name, str(states.operations), str(states.crashes), *words]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
