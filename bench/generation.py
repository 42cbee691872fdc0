"""Tokens that decoders generate beside onnxruntime's, in processes that take turns.

The models are of the sizes of GPT-2 small and Qwen2-0.5B, with random weights.  GPT-2's caches grow
by Concat, Qwen2's are in GroupQueryAttention, for which onnxruntime shares a buffer between calls.
Products of "rounded" models round what they read to 8 bits (accuracy_level 4 of MatMulNBits).
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median

from bench.decoders import GPT2_SMALL, QWEN2_HALF, build_gpt2_decoder, build_qwen2_decoder
from bench.measuring import compare_medians, time_call, time_in_turns
from bench.processes import SCRIPTS, worker
from bench.rows import THREADS, Bench, Cells, Option
from engine.graphs.io import onnx_io

MODELS = {
    "gpt2": partial(build_gpt2_decoder, GPT2_SMALL, "concat"),
    "gpt2_int4": partial(build_gpt2_decoder, GPT2_SMALL, "concat", 4),
    "qwen2": partial(build_qwen2_decoder, QWEN2_HALF, "grouped"),
    "qwen2_int4": partial(build_qwen2_decoder, QWEN2_HALF, "grouped", 4),
    "qwen2_int4_rounded": partial(build_qwen2_decoder, QWEN2_HALF, "grouped", 4, level=4),
}
SECONDS = 1.0  # that the tokens of a turn take at least, up to `MOST` tokens
MOST = 64


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "decoder.onnx"
        onnx_io.save(MODELS[name](), model)
        capacity = options.prompt + MOST
        for threads in options.threads:
            sides = ("edgegrad", "onnxruntime")
            with ExitStack() as stack:
                words = (threads, options.prompt, capacity)
                workers = {
                    side: stack.enter_context(
                        worker(
                            [sys.executable, SCRIPTS / "generation.py", side, model, *words], side
                        )
                    )
                    for side in sides
                }
                for made in workers.values():
                    made.run(2)
                took = max(time_call(made.run) for made in workers.values())
                count = min(MOST, max(4, ceil(SECONDS / took)))
                runs = {side: partial(made.run, count) for side, made in workers.items()}
                rests = {side: made.await_rest for side, made in workers.items()}
                times = time_in_turns(runs, options.turns, rests=rests)
            rates = [count / median(times[side]) for side in sides]
            yield threads, *rates, compare_medians(times["onnxruntime"], times["edgegrad"])


BENCHES = (
    Bench(
        "generation",
        "tokens a second of decoders with caches beside onnxruntime's, in turns",
        {name: name for name in MODELS},
        ("threads", "ours tokens/s:.2f", "onnxruntime tokens/s:.2f", "onnxruntime / ours:.2f"),
        measure,
        options=(
            THREADS,
            Option("prompt", 64, "tokens before"),
            Option("turns", 5, "turns of each"),
        ),
        small="gpt2_int4 --turns 1 --threads 1 --prompt 4",
    ),
)
