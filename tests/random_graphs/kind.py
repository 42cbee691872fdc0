"""Random graphs as a kind of the fuzzer, whose processes and bounds they run in."""

from __future__ import annotations

import contextlib
import json
import random
import re
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from tests.fuzz.kind import Kind
from tests.random_graphs import generate
from tests.random_graphs.compare import compare
from tests.random_graphs.report import DifferentError
from tests.random_graphs.shrink import shrink
from tests.random_graphs.sketch import BrokenError, Model


class RandomGraphs(Kind):
    """The models of all seeds; each process notes in `log` what became of its own."""

    name: ClassVar[str] = "random graphs"
    suffix: ClassVar[str] = ".onnx"

    def __init__(self, folder: Path, *, open_too: bool = True) -> None:
        self.folder, self.open_too = folder, open_too
        self.log = folder / "log.jsonl"

    def made(self, seed: int, only: frozenset[int] | None = None) -> tuple[Any, int]:
        """The seed stands for itself: a graph is made where it is compared."""
        return seed, 0

    def run(self, subject: Any, rng: random.Random) -> str:
        """Make the graph of a seed and compare it."""
        try:
            model, sketch = generate.make(subject)
        except BrokenError as error:
            self.keep(error.model, subject)
            raise
        try:
            report = compare(model, self.open_too)
        except Exception:
            self.keep(model, subject)
            raise
        note = {
            "seed": subject,
            "nodes": len(model.graph.nodes),
            "ops": sorted({f"{n.domain}::{n.op}".removeprefix("::") for n in model.graph.nodes}),
            "unfit": [[op, reason(text)] for op, text in sketch.refused],
            "done": report.done,
            "changed": report.changed,
            "refused": [[what, reason(text)] for what, text in report.refused],
            "unstable": report.unstable,
        }
        with self.log.open("a") as file:
            file.write(json.dumps(note) + "\n")
        return "compared" if report.done else "refused"

    def keep(self, model: Model, seed: int) -> None:
        """Keep a model that fails: a seed makes another one where case rows have changed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(EngineError):
            write(model, self.folder / f"whole-{seed}.onnx")


def reason(text: str) -> str:
    """A refusal without names and numbers, so that equal ones are counted together."""
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|'[^']*'", "..", text)
    return re.sub(r"-?\d+(\.\d+)?", "#", text)[:120]


def kept(lines: Sequence[Mapping[str, Any]]) -> str:
    """A summary of notes: what was compared and refused, which ops and passes took part."""
    done, changed = Counter[str](), Counter[str]()
    refused, used, unfit = Counter[str](), Counter[str](), Counter[str]()
    for line in lines:
        done.update(line["done"])
        changed.update(n for n, k in line["changed"].items() if k)
        refused.update({what for what, _ in line["refused"]})
        used.update(line["ops"])
        unfit.update(f"{op}: {text}" for op, text in line["unfit"])
    nodes = sum(line["nodes"] for line in lines)
    every = [op.title for op in list_ops().values() if not op.internal and op.optimizer is None]
    rejected = unfit.total()
    text = [
        f"{len(lines)} graphs of {nodes} nodes; {sum(bool(x['done']) for x in lines)} compared; "
        f"{100 * nodes / max(1, nodes + rejected):.1f} % of the nodes drawn were accepted",
        f"{len(used.keys() & set(every))} of {len(every)} ops; without: "
        + ", ".join(sorted(set(every) - used.keys())),
        f"{sum(line['unstable'] for line in lines)} outputs too unstable to compare",
        *(f"  {n:7} {name}" for name, n in sorted(done.items())),
        "graphs that a pass changed:",
        *(f"  {n:7} {name}" for name, n in changed.most_common()),
        "graphs that were refused:",
        *(f"  {n:7} {name}" for name, n in refused.most_common()),
        "nodes that were refused, most often:",
        *(f"  {n:7} {name}" for name, n in unfit.most_common(12)),
    ]
    return "\n".join(text)


def save(path: Path, text: str) -> None:
    """Write a text file."""
    path.write_text(text, errors="replace")


# --- one alone


def failure(model: Model, open_too: bool = True) -> tuple[str, str]:
    """Return how a model fails, equal for similar failures, and all details; empty if it does
    not.
    """
    try:
        compare(model, open_too)
    except DifferentError as error:
        return f"{error.way}", str(error)
    except Exception as error:
        cause = error.__cause__ or error
        frame = traceback.extract_tb(cause.__traceback__)[-1]
        where = f"{type(cause).__name__} in {Path(frame.filename).name}:{frame.name}"
        return where, "".join(traceback.format_exception(error))
    return "", ""


def replay(kind: RandomGraphs, given: int | Model) -> int:
    """Compare one model in this process; if it fails, make it small and keep it."""
    if isinstance(given, Model):
        model = given
    else:
        try:
            model, _ = generate.make(given)
        except BrokenError as error:
            model = error.model
    how, text = failure(model, kind.open_too)
    print(model.graph, text or "all ways agree")
    if not how:
        return 0
    small = shrink(model, lambda smaller: failure(smaller, kind.open_too)[0] == how)
    _, text = failure(small, kind.open_too)
    kind.folder.mkdir(parents=True, exist_ok=True)
    path = kind.folder / f"{model.seed}.onnx"
    write(small, path)
    print(f"smallest:\n{small.graph}\n{text}\n\npython -m tests.random_graphs --replay {path}")
    return 1


def write(model: Model, path: Path) -> None:
    """Write a model with what it is fed: as an ONNX file, and arrays beside it."""
    graph = model.graph.copy()
    try:
        graph.types = infer(graph.copy()).types
    except EngineError:
        print("its types are not known, so that the file has none")
    proto = onnx_io.to_proto(graph)
    proto.metadata_props.add(key="seed", value=str(model.seed))
    path.write_bytes(proto.SerializeToString())
    arrays: dict[str, Any] = dict(model.fed)
    np.savez(path.with_suffix(".npz"), **arrays)


def load(path: Path) -> Model:
    """The model of a file that `write` has written."""
    proto = onnx.load(path)
    seed = next((int(p.value) for p in proto.metadata_props if p.key == "seed"), 0)
    graph = onnx_io.load(proto)
    with np.load(path.with_suffix(".npz")) as file:
        return Model(graph, dict(file), seed)
