"""Timed tables of the documents, measured again on this machine and put in their places.

A figure is the command of another bench and the tables that documents have of its rows.  A document
marks the place of a table by two comments, and the table ends in the machine, the date and the
command.  Without a subject all are measured, in half an hour; EDGEGRAD_BENCH_PEERS adds the peers.
Run them on a machine that does nothing else.
"""

from __future__ import annotations

import re
import textwrap
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring import ROOT
from bench.rows import Bench, Cells, Option, find
from bench.running import COMMAND, choose_benches, make_parser, measure
from bench.start import ROWS
from bench.tables import format_cell, make_markdown
from engine.base.errors import EngineError
from engine.kernels.machine.target import detect_host
from engine.tools.benchmark import machine
from engine.tools.benchmark.workloads import WORKLOADS

README, INDEX, BENCHMARKS = "README.md", "docs/index.md", "docs/benchmarks.md"
INFERENCE, PRECISION = "docs/inference.md", "docs/precision.md"
WIDTH = 140  # characters of a line of a document
Row = Mapping[str, Any]  # a row of a bench, by the titles of its columns; "subject" is one


@dataclass(frozen=True, slots=True)
class View:
    """Table of a document.

    document: its path in the repository.
    columns: of the table, each as "title = the bench's title", where the two differ; the
        subject is not one of them.
    across: columns of the bench that repeat for each number of threads: a row then has all of them.
    only: the rows that are in the table, by the value of a column.
    """

    document: str
    columns: tuple[str, ...]
    across: tuple[str, ...] = ()
    only: tuple[str, object] | None = None

    def make_table(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of the table in Markdown."""
        if self.only is not None:
            name, value = self.only
            rows = [row for row in rows if row[name] == value]
        same = [_split(column) for column in self.columns]
        each = [_split(column) for column in self.across]
        threads = list(dict.fromkeys(row["threads"] for row in rows)) if each else []
        titles = ["", *(title for title, _ in same)]
        titles += [f"{title}, {_count(n)}" for n in threads for title, _ in each]
        lines: dict[tuple[str, ...], list[str]] = {}
        for number, row in enumerate(rows):
            key = (name_subject(row["subject"]), *(_show(row[source]) for _, source in same))
            key = key if each else (*key, str(number))
            cells = lines.setdefault(key, list(key[: len(same) + 1]))
            cells += [_show(row[source]) for _, source in each]
        return make_markdown(titles, list(lines.values()))


@dataclass(frozen=True, slots=True)
class Figure:
    """Tables of one measurement: the words of its command, and the tables."""

    words: str
    views: tuple[View, ...]

    def measure(self) -> Sequence[Row]:
        """Return the rows of the bench, which are printed as they become known."""
        words = self.words.split()
        bench = find(words[0])
        options = make_parser([bench]).parse_args(words)
        ((bench, subjects),) = choose_benches(options.words)
        return measure(bench, subjects, options).as_dicts()

    def list_sources(self) -> set[str]:
        """Return the titles of the bench's columns that its tables have."""
        columns = (column for view in self.views for column in (*view.columns, *view.across))
        return {source for _, source in map(_split, columns)}


def _split(column: str) -> tuple[str, str]:
    """Return the title that a column has here, and in the bench."""
    title, _, source = column.partition(" = ")
    return title, source or title


def _count(threads: int) -> str:
    return f"{threads} thread" if threads == 1 else f"{threads} threads"


def _show(value: object) -> str:
    """Return a cell; a number has three digits."""
    if not isinstance(value, float):
        return format_cell(value)
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}" if abs(value) >= 0.1 else f"{value:.2g}"


def name_subject(name: str) -> str:
    """Return the title of a workload, or the name of another subject."""
    return (WORKLOADS[name].title if name in WORKLOADS else "") or name


# --- the documents


def find_mark(name: str) -> re.Pattern[str]:
    """Return the pattern of the place of a figure: what is before, the table, and what is after."""
    return re.compile(rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->\n)", re.S)


def write_table(name: str, view: View, rows: Sequence[Row], folder: Path) -> None:
    """Put a table into its document.

    Raises:
        EngineError: the document has no place for it.
    """
    path = folder / view.document
    text = path.read_text("utf-8")
    if not find_mark(name).search(text):
        raise EngineError(f"{view.document}: has no place for the figure {name}")
    body = "\n".join(["", *view.make_table(rows), "", *describe(FIGURES[name]), ""])
    path.write_text(find_mark(name).sub(lambda m: f"{m[1]}{body}{m[2]}", text), "utf-8")


def describe(figure: Figure) -> list[str]:
    """Return the lines below a table: the machine, the date, the command."""
    facts = machine.describe()
    name = f"{facts.get('processor', facts['architecture'])} ({detect_host().cpu})"
    text = f"{name}, cores: {facts['cores']}, {facts['date'][:10]}, `{COMMAND} {figure.words}`."
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def measure_figure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a figure: how many rows it has, and the minutes that they took."""
    begin = time.perf_counter()
    rows = FIGURES[name].measure()
    for view in FIGURES[name].views:
        write_table(name, view, rows, options.folder)
    documents = ", ".join(view.document for view in FIGURES[name].views)
    yield len(rows), (time.perf_counter() - begin) / 60, documents


# --- the figures

_FIRST = (README, INDEX)  # the pages that a person meets first
_LEADING = "mlp cnn mobilenet minilm"
_OTHERS = "resnet18 mobilenet_v3 vit gpt2 lstm mobilenet_head"
_HALVES = "minilm vit gpt2 mobilenet resnet18 lstm"
_TORCH = ("PyTorch ms = torch ms", "PyTorch / ours = torch ratio")
_COMPILED = (
    "torch.compile ms = torch-compiled ms", "torch.compile / ours = torch-compiled ratio",
    "its start s = torch-compiled start s",
)  # fmt: skip
_ORT = ("ORT-training ms = ort ms", "ORT-training / ours = ort ratio")
_STEP = ("batch", "threads", "edgegrad ms = step ms")
_HALF = ("f32 ms", "16 bits ms = half ms", "f32 / 16 bits = f32 / half")
_AUTOCAST = ("autocast ms", "autocast / 16 bits = autocast / half")
_WORK = ("work memory, 16 bits / f32 = MB ratio",)
_STARTS = tuple(f"{title} s" for title in ROWS)
_MEMORY = ("edgegrad MiB = edgegrad", "ORT-training MiB = ort", "PyTorch MiB = torch")

FIGURES = {
    "step": Figure(
        f"steps {_LEADING} --threads 1 2 --time 2 --kinds ort torch",
        (
            View(BENCHMARKS, (*_STEP, "% of peak", *_ORT, *_TORCH)),
            *(View(page, (*_STEP, *_ORT, *_TORCH), only=("threads", 2)) for page in _FIRST),
        ),
    ),
    "step-avx2": Figure(
        f"steps {_LEADING} --threads 1 2 --time 2 --level x86-64-v3 --kinds torch",
        (View(BENCHMARKS, (*_STEP, "% of peak", *_TORCH)),),
    ),
    "step-compiled": Figure(
        f"steps {_LEADING} --threads 1 2 --time 2 --kinds torch-compiled",
        (View(BENCHMARKS, (*_STEP, "start s", *_COMPILED)),),
    ),
    "step-others": Figure(
        f"steps {_OTHERS} --threads 1 2 --time 2 --kinds torch",
        (View(BENCHMARKS, (*_STEP, "% of peak", *_TORCH)),),
    ),
    "step-batch-1": Figure(
        f"steps {_LEADING} --threads 1 2 --time 2 --batch 1 --kinds ort torch",
        (View(BENCHMARKS, (*_STEP, *_ORT, *_TORCH)),),
    ),
    "step-batch-4": Figure(
        f"steps {_LEADING} --threads 1 2 --time 2 --batch 4 --kinds ort torch",
        (View(BENCHMARKS, (*_STEP, *_ORT, *_TORCH)),),
    ),
    "long-attention": Figure(
        "attention long long-causal --threads 1 2",
        (View(BENCHMARKS, ("threads", "ms", "% of peak", "PyTorch / ours = x PyTorch")),),
    ),
    "recurrence": Figure(
        "recurrent LSTM GRU --threads 1 2",
        (View(BENCHMARKS, ("threads", "ms", "% of peak", "PyTorch / ours = x torch",
                           "PyTorch with oneDNN / ours = x oneDNN")),),
    ),
    "peak": Figure(
        f"memory {_LEADING} transformer",
        (
            View(BENCHMARKS, _MEMORY),
            *(View(page, _MEMORY, only=("subject", "mobilenet")) for page in _FIRST),
        ),
    ),
    "answer": Figure(
        "answers --threads 1 2 --turns 5",
        (
            View(
                INFERENCE,
                ("batch",),
                across=("ours ms", "onnxruntime ms", "onnxruntime / ours"),
            ),
        ),
    ),
    "first-step": Figure("start", (View(BENCHMARKS, (*_STARTS, "PyTorch s")),)),
    "first-answer": Figure("start.answers", (View(BENCHMARKS, (*_STARTS, "onnxruntime s")),)),
    "bf16": Figure(
        f"precision {_HALVES} --threads 1 2 --turns 3",
        (View(PRECISION, ("threads", *_HALF, *_AUTOCAST, *_WORK)),),
    ),
    "f16": Figure(
        f"precision {_HALVES} --half f16 --threads 1 2 --turns 3",
        (View(PRECISION, ("threads", *_HALF, *_WORK)),),
    ),
}  # fmt: skip

BENCHES = (
    Bench(
        "figures",
        "the timed tables of the documents, measured and put in their places",
        {name: name for name in FIGURES},
        ("rows:d", "minutes:.1f", "documents"),
        measure_figure,
        options=(Option("folder", ROOT, "the repository whose documents are written", Path),),
    ),
)
