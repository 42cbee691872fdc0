"""Do model families exported from library code train as in PyTorch, and run elsewhere afterwards?

    EDGEGRAD_BENCH_PEERS=path/to/python python -m bench.families [--page] [NAME ...]
    EDGEGRAD_BENCH_PEERS=path/to/python python -m bench.families --record

The peers' Python needs torch, torchvision, timm and transformers.  Every family is exported in the
ways of `exports.EXPORTS`.  Of each model it prints the largest difference of three training losses
(AdamW) and of the first gradients from PyTorch's, and of the outputs of the trained model, exported
for inference and run by stock onnxruntime, from the engine's.  It exits with 1 where one is above
what `train` tolerates, or where the engine refuses a model.  What an exporter cannot do, or does
wrong, is told but is no failure; nor is a documented limit of `train.LIMITS`, as long as the engine
refuses the model by name and trains it with static axes.

NAME chooses families, or one export of a family by its tag; all without a name.  `--page` writes
what was found to docs/families.md, where what was not chosen keeps its rows.  `--models` keeps the
exported models in a folder and uses those that are there.  `--record` keeps the models that
tests/test_families.py trains without PyTorch.

    python -m bench.families --rewritten [--page] [REWRITING ...]

Trains the recorded models after others have written them again, without PyTorch; see rewrites.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.families import page, rewritten
from bench.families.recorded import RECORDED, record
from bench.families.rewrites import REWRITINGS
from bench.families.train import Comparison
from engine.runtime.config import switch
from engine.tools.dev.exports import EXPORTS, parts

ROOT = Path(__file__).parents[2]
SECONDS = 300  # more for one model is a failure


def sources(python: str) -> dict[str, str]:
    """Every family and the library that its code is from."""
    done = subprocess.run(
        [python, "-m", "bench.families.peer", "--list"], cwd=ROOT, check=True, capture_output=True
    )
    listed: dict[str, str] = json.loads(done.stdout)
    return listed


def exported(python: str, folder: Path, tags: list[str]) -> Iterator[tuple[str, str | None]]:
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


def compared(path: Path) -> Comparison:
    """The engine's side, in a process of its own, which may neither crash nor take for ever."""
    command = [sys.executable, "-m", "bench.families.train", str(path)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Comparison(fault=f"not done in {SECONDS} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        return Comparison(fault=f"crash: {last[0]}"[:200])
    return Comparison(**json.loads(done.stdout.splitlines()[-1]))


def main(arguments: list[str]) -> int:
    """Compare, or record; the exit status."""
    parser = argparse.ArgumentParser(
        prog="bench.families", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="families, or exports by tags")
    parser.add_argument("--page", action="store_true", help="write docs/families.md")
    parser.add_argument("--record", action="store_true", help="keep what the tests train")
    parser.add_argument(
        "--models", metavar="FOLDER", type=Path, help="exported models to use, kept"
    )
    parser.add_argument(
        "--rewritten", action="store_true", help="recorded models, written again; NAME: ways"
    )
    options = parser.parse_args(arguments)
    if options.rewritten:
        return compare_rewritings(options.names or list(REWRITINGS), writes=options.page)
    python = switch("BENCH_PEERS")
    if not python:
        raise SystemExit("EDGEGRAD_BENCH_PEERS names no Python with torch and transformers")
    known = sources(python)
    chosen = options.names or list(known)
    tags = [f"{name}-{how.tag}" for how in EXPORTS for name in known]
    if missing := set(chosen) - known.keys() - set(tags):
        raise SystemExit(f"no family or export is named {', '.join(sorted(missing))}")
    tags = [tag for tag in tags if tag in chosen or parts(tag)[0] in chosen]
    tags = list(RECORDED) if options.record else tags
    results: dict[str, Comparison] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = (options.models or Path(name)).absolute()
        folder.mkdir(exist_ok=True)
        for tag, reason in exported(python, folder, tags):
            start = time.perf_counter()
            if reason is not None:
                found = Comparison(fault=f"exporter: {reason}", is_ours=False)
            else:
                found = compared(folder / f"{tag}.onnx")
            results[tag] = found
            print(line_of(tag, found, time.perf_counter() - start), flush=True)
            if options.page:
                page.write({tag: found}, known)
            if not (options.record or options.models):
                for file in folder.glob(f"{tag}.*"):
                    file.unlink()
        if options.record:
            record(folder)
    ours = [t for t, found in results.items() if found.fails]
    passed = sum(not found.fault for found in results.values())
    families = {parts(t)[0] for t, found in results.items() if not found.fault}
    print(
        f"{passed} of {len(results)} models, of {len(families)} families, train "
        f"and export as they should; {len(ours)} fail"
    )
    return 1 if ours else 0


def compare_rewritings(names: list[str], *, writes: bool) -> int:
    """Compare rewritten models; returns 1 where one is wrong, whatever else is refused."""
    if unknown := set(names) - REWRITINGS.keys():
        raise SystemExit(f"no rewriting is named {', '.join(sorted(unknown))}")
    rows = rewritten.compare_all(names)
    if writes:
        page.write_section(rewritten.section(rows, page.kept_section()))
    return 1 if any(row.wrong for row in rows.values()) else 0


def line_of(tag: str, found: Comparison, seconds: float) -> str:
    """A line of what is printed."""
    numbers = [found.losses, found.gradients, found.inference]
    cells = " ".join("       -" if n is None else f"{n:8.1e}" for n in numbers)
    whose = "FAILS" if found.fails else "limit" if found.is_limit else "not ours"
    verdict = f"  {whose}: " if found.fault else ""
    return f"{tag:44} {cells} {seconds:6.1f} s{verdict}{found.fault}"
