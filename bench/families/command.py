"""Families of models exported from library code: training as in PyTorch, then use elsewhere.

families            exports of a library, by EDGEGRAD_BENCH_PEERS
families.rewritten  the recorded models after others have written them again, without PyTorch; see
                    rewrites.py

The peers' Python needs torch, torchvision, timm and transformers.  Every family is exported in the
ways of `exports.EXPORTS`.  A row for each model has the largest difference of three training losses
(AdamW) and of the first gradients from PyTorch's, and of the outputs of the trained model, exported
for inference and run by stock onnxruntime, from the engine's.  It is WRONG if one exceeds the
tolerance of `train`, or if the engine refuses a model.  Limits and faults of an exporter are
reported but do not count as failures; nor is a documented limit of `train.LIMITS`, as long as the
engine refuses the model by name and trains it with static axes.

Subjects are families, exports of a family by their tags, `all`, and `recorded`: what
tests/bench/test_families.py trains without PyTorch, and `--record` keeps.  `--page` writes the
results to docs/families.md, where what was not chosen keeps its rows.  `--models` keeps the
exported models in a folder and uses those that are there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from bench.families import page, rewritten
from bench.families.recorded import RECORDED, record_families
from bench.families.rewrites import REWRITINGS
from bench.families.train import Comparison
from bench.measuring import ROOT
from bench.processes import find_peer_python
from bench.rows import WRONG, Bench, Cells, Option
from engine.base.errors import InputError, suggest_nearest
from engine.tools.dev.exports import EXPORTS, split_tag

DOCUMENT = "docs/families.md"
SECONDS = 300  # more for one model is a failure


def list_sources(python: str) -> dict[str, str]:
    """Return every family and the library that its code is from."""
    done = subprocess.run(
        [python, "-m", "bench.families.peer", "--list"], cwd=ROOT, check=True, capture_output=True
    )
    listed: dict[str, str] = json.loads(done.stdout)
    return listed


def export_missing(python: str, folder: Path, tags: list[str]) -> Iterator[tuple[str, str | None]]:
    """Have the models written that are not there; yield each tag with why there is none, or None.

    A model whose export crashes the process is reported as such, and another process goes on.
    """

    def report(tag: str) -> Path:
        return folder / f"{tag}.json"

    left = [tag for tag in tags if not report(tag).exists()]
    yield from ((t, json.loads(report(t).read_text())) for t in tags if t not in left)
    while left:
        command = [python, "-m", "bench.families.peer", str(folder), *left]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                left.remove(tag := line.strip())
                yield tag, json.loads(report(tag).read_text())
            if process.wait() > 0:
                errors.seek(0)
                raise SystemExit(f"{left[0]} cannot be made:\n{errors.read()[-2000:]}")
        if process.returncode:
            yield left.pop(0), f"the process ended with signal {-process.returncode}"


def compare_family(path: Path) -> Comparison:
    """Return the engine's side, in a process of its own, which may neither crash nor take for
    ever.
    """
    command = [sys.executable, "-m", "bench.families.train", str(path)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Comparison(fault=f"not done in {SECONDS} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        return Comparison(fault=f"crash: {last[0]}"[:200])
    return Comparison(**json.loads(done.stdout.splitlines()[-1]))


def list_tags(subject: str, known: Collection[str]) -> list[str]:
    """Return the tags of the exports that a subject names.

    Raises:
        InputError: there are none.
    """
    if subject == "recorded":
        return list(RECORDED)
    every = [f"{name}-{how.tag}" for how in EXPORTS for name in known]
    if chosen := [tag for tag in every if subject in ("all", tag, split_tag(tag)[0])]:
        return chosen
    raise InputError(f"no family or export {subject!r}{suggest_nearest(subject, known)}")


def measure(subject: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each export."""
    python = find_peer_python()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.models or Path(name)).absolute()
        folder.mkdir(exist_ok=True)
        for tag, reason in export_missing(python, folder, list_tags(subject, list_sources(python))):
            start = time.perf_counter()
            if reason is not None:
                comparison = Comparison(fault=f"exporter: {reason}", is_ours=False)
            else:
                comparison = compare_family(folder / f"{tag}.onnx")
            took = time.perf_counter() - start
            fault = f"{WRONG}: {comparison.fault}" if comparison.fails else comparison.fault
            yield tag, comparison.losses, comparison.gradients, comparison.inference, took, fault
            if not (options.record or options.models):
                for file in folder.glob(f"{tag}.*"):
                    file.unlink()
        if options.record:
            record_families(folder)


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write what was found to the page."""
    every = (cells for rows in found.values() for cells in rows)
    rows = {str(tag): page.make_row(str(tag), cells) for tag, *cells in every}
    page.write(rows, list_sources(find_peer_python()), path)


def measure_rewritten(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a way to write models again."""
    row = rewritten.compare_all(name)
    verdict = f"{WRONG}: {row.faults}" if row.wrong else row.faults
    yield *row.cells, verdict


def write_section(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write what was found to the last section of the page."""
    rows = {name: [*map(str, cells[:-1])] for name, (cells,) in found.items() if cells}
    page.write_section(rewritten.make_section(rows, page.find_kept_section(path)), path)


BENCHES = (
    Bench(
        "families",
        "families of models, exported from library code, against PyTorch",
        None,
        ("export", "losses:.1e", "gradients:.1e", "inference:.1e", "s:.1f", "remark"),
        measure,
        usual=("all",),
        options=(
            Option("models", None, "a folder of exported models, kept", Path),
            Option("record", False, "keep what the tests train"),
        ),
        page=write_page,
        document=DOCUMENT,
    ),
    Bench(
        "families.rewritten",
        "recorded models after others have written them again",
        {name: name for name in REWRITINGS},
        (*rewritten.COLUMNS, "remarks"),
        measure_rewritten,
        page=write_section,
        document=DOCUMENT,
    ),
)
