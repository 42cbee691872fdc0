"""Page docs/families.md: every family and export, its differences, and their reasons."""

from __future__ import annotations

from pathlib import Path

from bench.rows import WRONG, Cells
from engine.tools.dev.exports import EXPORTS, split_tag

INTRODUCTION = """\
# Model families

Models from libraries, and written by hand in plain PyTorch, exported by both of PyTorch's exporters
and trained in both systems. Written by
`EDGEGRAD_BENCH_PEERS=path/to/python python -m bench families --page`, where that Python has torch,
torchvision, timm and transformers. The [last section](#rewritten-models) has models that other
tools have rewritten.

The models are small: a few layers, random weights, dropout 0. `old` is the exporter that traces,
`new` the one over `torch.export`; the number is the opset; `train` and `eval` say which statistics
normalisations use; `folded` models were optimised by the exporter, the default of both. The
columns give the largest differences: between the losses of three AdamW steps and PyTorch's; between
the gradients of the first step and PyTorch's, relative to the largest element of each; and between
the outputs of the engine's eval model and of the trained model, exported for inference, checked by
`onnx.checker` with strict shape inference and run by stock onnxruntime. Models for which PyTorch's
own float32 and float64 results disagree are compared in float64. A row with `refused` has met a
limit named in [compatibility.md](compatibility.md); its numbers were measured with static axes.
"""
REWRITTEN = "## Rewritten models"
HEAD = "| family | export | losses | gradients | inference | remark |"


def format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if value else "0"


def make_row(tag: str, found: Cells) -> str:
    """Return a row of the page, of the cells after the tag."""
    family, how = split_tag(tag)
    *numbers, _, fault = found
    remark = str(fault).replace("|", "\\|").replace("`", "'")
    if remark.startswith(WRONG):
        remark = f"**fails**{remark.removeprefix(WRONG)}"
    texts = (format_number(n if isinstance(n, float) else None) for n in numbers)
    return f"| {family} | {how.tag} | {' | '.join(texts)} | {remark} |"


def split_cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def list_kept_rows(page: Path) -> dict[str, str]:
    """Return the rows of the page as it is, by tag."""
    if not page.exists():
        return {}
    lines = page.read_text("utf-8").splitlines()
    tags = {how.tag for how in EXPORTS}
    rows = [line for line in lines if line.startswith("| ") and line.count(" | ") >= 5]
    return {"-".join(split_cells(r)[:2]): r for r in rows if split_cells(r)[1] in tags}


def write(found: dict[str, str], sources: dict[str, str], page: Path) -> None:
    """Write the page of rows by tag; families that were not compared keep theirs."""
    rows = list_kept_rows(page) | found
    order = [f"{name}-{how.tag}" for name in sorted(sources) for how in EXPORTS]
    rows = {tag: rows[tag] for tag in order if tag in rows}
    passed = [tag for tag, r in rows.items() if not split_cells(r)[5]]
    failed = [tag for tag, r in rows.items() if split_cells(r)[5].startswith("**fails**")]
    refused = [tag for tag, r in rows.items() if split_cells(r)[5].startswith("refused")]
    families = {split_tag(tag)[0] for tag in rows}
    others = len(rows) - len(passed) - len(failed) - len(refused)
    counts = (
        f"{len({split_tag(t)[0] for t in passed})} of {len(families)} families and "
        f"{len(passed)} of "
        f"{len(rows)} exports train and export correctly; {len(failed)} fail, "
        f"{len(refused)} are refused for a documented limit, and for {others} the exporter or "
        "onnxruntime fails.\n"
    )
    text = [INTRODUCTION, counts]
    for source in sorted(set(sources.values())):
        names = [name for name in sorted(sources) if sources[name] == source]
        own = [rows[t] for n in names for how in EXPORTS if (t := f"{n}-{how.tag}") in rows]
        title = "Plain PyTorch" if source == "plain" else source
        text.append("\n".join([f"## {title}\n", HEAD, "|---|---|---|---|---|---|", *own, ""]))
    page.write_text("\n".join([*text, find_kept_section(page)]).rstrip("\n") + "\n", "utf-8")


def find_kept_section(page: Path) -> str:
    """Return the page's section about rewritten models, "" if it has none."""
    text = page.read_text("utf-8") if page.exists() else ""
    start = text.find(f"\n{REWRITTEN}\n")
    return text[start + 1 :] if start >= 0 else ""


def write_section(section: str, page: Path) -> None:
    """Write the page with another section about rewritten models."""
    text = page.read_text("utf-8").removesuffix(find_kept_section(page)).rstrip("\n")
    page.write_text(f"{text}\n\n{section.rstrip()}\n", "utf-8")
