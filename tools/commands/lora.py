"""`edgegrad lora`: adapters for a forward model: adding, merging and opening them."""

from __future__ import annotations

from pathlib import Path

import click

from engine import lora
from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad lora forward.onnx --rank 8 --alpha 16 --match 'attn.*(q|v)' -o forward.lora.onnx",
        "edgegrad artifacts forward.lora.onnx --loss cross_entropy -o artifacts/",
        "edgegrad lora trained.onnx --merge -o merged.onnx",
        "edgegrad lora trained.onnx --open -o base.onnx --adapter poems.onnx_adapter",
    )
)
@click.argument("model", type=options.Existing(), metavar="MODEL")
@options.take_out("File to write.", required=True)
@click.option(
    "--match",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="Adapt layers whose name, weight's name or node's name contains a match.  Repeatable.",
)
@click.option(
    "--rank", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
    help="The rank of the adapters: the rows of A.",
)  # fmt: skip
@click.option(
    "--alpha", type=float, metavar="VALUE",
    help="Scale adapters by alpha / rank.  [default: twice the rank]",
)  # fmt: skip
@click.option(
    "--dropout", type=float, default=0.0, show_default=True, metavar="SHARE",
    help="The share of the adapter's input that training drops.",
)  # fmt: skip
@click.option("--rank-stabilised", is_flag=True, help="Scale adapters by alpha / sqrt(rank).")
@options.seed
@click.option(
    "--merge", is_flag=True, help="Merge the adapters of a trained model into its weights instead."
)
@click.option(
    "--dequantise",
    is_flag=True,
    help="With --merge: also merge into quantised weights, as float32.",
)
@click.option(
    "--open", "opens", is_flag=True,
    help="Turn the adapters of a trained model into inputs instead, for onnxruntime's adapters.",
)  # fmt: skip
@click.option(
    "--adapter", type=options.AnyPath(), metavar="PATH",
    help="With --open: also write the adapter, as an .onnx_adapter or a folder of peft's.",
)  # fmt: skip
@options.as_json
def command(
    model: Path,
    out: Path,
    patterns: tuple[str, ...],
    rank: int,
    alpha: float | None,
    dropout: float,
    rank_stabilised: bool,
    seed: int,
    merge: bool,
    dequantise: bool,
    opens: bool,
    adapter: Path | None,
    as_json: bool,
) -> None:
    """Add low-rank adapters to layers of a model, or merge its adapters.

    MatMul, Gemm, Conv and MatMulNBits can have adapters, also with quantised weights.  All
    commands that train the model then train only the adapters.
    """
    if sum((bool(patterns), merge, opens)) != 1:
        raise click.UsageError("give exactly one of --match, --merge and --open")
    if (dequantise and not merge) or (adapter and not opens):
        raise click.UsageError("--dequantise is for --merge, and --adapter for --open")
    if merge:
        kept = lora.merge(model, out, dequantise=dequantise)
        rows = [f"{name} keeps its adapter beside its quantised weight" for name in kept]
        _tell(as_json, {"file": out, "kept": kept}, [f"{out}: merged", *rows])
    elif opens:
        names = lora.open_inputs(model, out)
        if adapter is not None:
            lora.Adapter.of_model(model).save(adapter)
        _tell(as_json, {"file": out, "inputs": names}, [f"{out}: {len(names)} more inputs"])
    else:
        chosen = lora.Lora(patterns, rank, alpha, dropout, rank_stabilised, seed)
        made = lora.adapt(model, chosen)
        made.save(out)
        _tell(
            as_json,
            {"file": out, **made.to_dict()},
            [str(made), f"{out}: {out.stat().st_size:,} bytes",
             f"next: edgegrad artifacts {out} --loss NAME -o artifacts/"],
        )  # fmt: skip


def _tell(as_json: bool, found: dict[str, object], lines: list[str]) -> None:
    if as_json:
        options.print_json(found)
        return
    for line in lines:
        options.echo(line)
