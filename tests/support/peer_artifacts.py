"""Our artifacts, run by onnxruntime-training 1.19.2 itself.

    EDGEGRAD_BENCH_PEERS=path/to/python python -m tests.support.peer_artifacts [--whole] [WORD]

The peers' Python needs onnxruntime-training, onnx and torch.  Of the first case row in float32 of
each operator with a gradient, or of every row under --whole, a model is made whose weights are the
inputs that the row differentiates; `MODELS` are rows, too.  WORD chooses those whose title contains
it.  The peer makes artifacts of a model and runs a step of
them, then runs a step of ours, each in a process of its own, since it may crash.  Prints where the
peer runs its own artifacts but not ours, or where ours give it another gradient than they give us
although its own do not, and exits with 1 if there is such a row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-4  # of the largest element of a gradient
OURS, THEIRS = "ours", "theirs"

Gradients = dict[str, Any]


# --- our side


def write(folder: Path, word: str, *, whole: bool = False) -> list[str]:
    """Write a folder for each row: forward model, artifacts, batch and our gradients.

    Returns the titles of the rows; row i is in the folder named i.  Rows that make no
    artifacts are printed and left out: of running statistics, and of nodes that no file may have.
    """
    from engine.errors import EngineError
    from engine.tools.dev.case_graphs import list_cases
    from tests.support.peer_models import MODELS, Row, is_trainable, make_case_row

    titles: list[str] = []
    rows: list[tuple[str, Callable[[], Row]]] = [*MODELS.items()]
    cases = [c for c in list_cases() if is_trainable(c)]
    if not whole:
        cases = list({c.op: c for c in reversed(cases)}.values())
    rows += [(c.id, partial(make_case_row, c)) for c in cases]
    for title, make in rows:
        if word not in title:
            continue
        place = folder / str(len(titles))
        place.mkdir(exist_ok=True)
        try:
            make().write(place)
            titles.append(title)
        except EngineError as error:
            print(f"left out: {title}: {error}")
    return titles


def main(argv: Sequence[str]) -> int:
    """Write the rows, let the peer run them, and compare; see the head of this file."""
    from engine.system.config import switch

    peer = switch("BENCH_PEERS")
    if not peer:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        words = [word for word in argv if word != "--whole"]
        titles = write(folder, words[0] if words else "", whole="--whole" in argv)
        command = [peer, str(Path(__file__).resolve()), "--peer", made, str(len(titles))]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
        verdicts = [judge(folder / str(i)) for i in range(len(titles))]
    width = max(map(len, titles))
    for title, (kind, text) in zip(titles, verdicts, strict=True):
        if kind.startswith("FAULT"):
            print(f"{title.ljust(width)}  {kind}: {text}")
    print(", ".join(f"{n} {kind}" for kind, n in Counter(kind for kind, _ in verdicts).items()))
    return 1 if any(kind.startswith("FAULT") for kind, _ in verdicts) else 0


def judge(folder: Path) -> tuple[str, str]:
    """Return the result of a row, and the reason."""
    data = {side: json.loads((folder / f"{side}.json").read_text()) for side in (OURS, THEIRS)}
    expected = dict(np.load(folder / "expected.npz"))
    off = {side: measure_difference(folder / f"{side}.npz", expected) for side in (OURS, THEIRS)}
    if data[OURS] == "ran" and off[OURS] < TOLERANCE:
        return "run as ours", ""
    if data[THEIRS] != "ran":
        return "rows that the peer cannot train itself", data[THEIRS]
    if data[OURS] != "ran":
        return "FAULT, only its own artifacts run", data[OURS]
    if off[THEIRS] < TOLERANCE:
        return "FAULT, another gradient", f"off by {off[OURS]:.1e}"
    return "rows whose gradient the peer gets wrong with its own artifacts, too", ""


def measure_difference(path: Path, expected: Gradients) -> float:
    """The largest difference of gradients, relative to the largest element of each."""
    if not path.exists():
        return float("inf")
    loaded = np.load(path)
    errors = [0.0]
    for name, want in expected.items():
        error = np.abs(loaded[name] - want).max(initial=0)
        errors.append(float(error / max(np.abs(want).max(initial=0), 1e-6)))
    return max(errors) if np.all(np.isfinite(errors)) else float("inf")


# --- the peer's side


def run_step(folder: Path, models: Path) -> Gradients:
    """A training step of the peer: the gradient of every weight."""
    from onnxruntime.training.api import CheckpointState, Module

    state = CheckpointState.load_checkpoint(str(models / "checkpoint"))
    module = Module(str(models / "training_model.onnx"), state)
    batch = np.load(folder / "batch.npz")
    module(*(batch[name] for name in module.input_names()))
    return {n: np.array(p.grad) for n, p in state.parameters if p.requires_grad}


def serve(folder: Path, side: str) -> None:
    """Run a step of the artifacts of one side; write the gradients."""
    models = folder
    if side == THEIRS:
        from onnxruntime.training import artifacts

        spec, models = json.loads((folder / "row.json").read_text()), folder / THEIRS
        models.mkdir()
        loss = artifacts.LossType[spec["loss"]] if spec["loss"] else None
        artifacts.generate_artifacts(
            str(folder / "forward.onnx"), requires_grad=spec["weights"], loss=loss,
            artifact_directory=str(models),
        )  # fmt: skip
    np.savez(folder / f"{side}.npz", **run_step(folder, models))


def run_rows(folder: Path, count: int) -> None:
    """Run every row in processes of their own, which have the peer's packages loaded already."""
    import onnxruntime.training.api
    import onnxruntime.training.artifacts  # noqa: F401  # loaded before the fork

    for i in range(count):
        for side in (OURS, THEIRS):
            place = folder / str(i)
            child = os.fork()
            if not child:
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
                try:
                    serve(place, side)
                    outcome = "ran"
                except Exception as error:  # whatever the peer raises is its outcome
                    outcome = f"{type(error).__name__}: {error}"[:300]
                (place / f"{side}.json").write_text(json.dumps(outcome))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status:
                (place / f"{side}.json").write_text(json.dumps(f"the process ended with {status}"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        run_rows(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        raise SystemExit(main(sys.argv[1:]))
