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
from functools import partial
from pathlib import Path
from statistics import median

from bench.decoders import GPT2_SMALL, QWEN2_HALF, build_gpt2_decoder, build_qwen2_decoder
from bench.measuring import compare_medians
from bench.processes import SCRIPTS, time_workers
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
            words = (threads, options.prompt, capacity)
            script = SCRIPTS / "generation.py"
            commands = {side: [sys.executable, script, side, model, *words] for side in sides}
            times = time_workers(commands, options.turns, seconds=SECONDS, most=MOST)
            rates = [1 / median(times[side]) for side in sides]
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
