"""Tokens of a decoder after a prompt, by our decoder or by onnxruntime's session.

    python generation.py (edgegrad|onnxruntime) MODEL THREADS PROMPT CAPACITY

Every line on standard input is a number of tokens after PROMPT tokens, and is answered by `done`.
CAPACITY limits prompt and tokens.  onnxruntime keeps its caches in bound values: in its nodes
GroupQueryAttention one buffer serves before and after a token, a Concat makes another one for each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from engine.tools.benchmark.answering import open_session

FIRST = np.int64(1)  # the token that the prompt repeats


class Bound:
    """A text that onnxruntime continues, with its caches in bound values."""

    def __init__(self, session: Any, prompt: int, capacity: int) -> None:
        import onnxruntime

        self.session, self.make = session, onnxruntime.OrtValue.ortvalue_from_numpy
        inputs = {each.name: each.shape for each in session.get_inputs()}
        self.takes = [name for name in inputs if not name.startswith("past")]
        self.presents = {
            name: name.replace("past_key_values", "present") for name in inputs
            if name.startswith("past")
        }  # fmt: skip
        # A GroupQueryAttention needs no positions, and shares one buffer between calls.
        self.shares = "position_ids" not in inputs
        rows = capacity if self.shares else 0
        self.caches = {
            name: self.make(np.zeros((1, inputs[name][1], rows, inputs[name][3]), np.float32))
            for name in self.presents
        }
        self.length = 0
        self.scores = self.append(np.full(prompt, FIRST))
        self.after_prompt = self.length, self.caches, self.scores

    def append(self, tokens: Any) -> Any:
        """Return the scores [tokens of the vocabulary] after more tokens."""
        count, total = len(tokens), self.length + len(tokens)
        feed = {
            "input_ids": tokens[None],
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.length, total)[None],
        }
        bound = self.session.io_binding()
        for name in self.takes:
            bound.bind_cpu_input(name, feed[name])
        for name, present in self.presents.items():
            bound.bind_ortvalue_input(name, self.caches[name])
            if self.shares:
                bound.bind_ortvalue_output(present, self.caches[name])
            else:
                bound.bind_output(present, "cpu")
        bound.bind_output("logits", "cpu")
        self.session.run_with_iobinding(bound)
        *caches, scores = bound.get_outputs()
        self.caches = dict(zip(self.presents, caches, strict=True))
        self.length = total
        return scores.numpy()[0, count - 1]

    def generate(self, count: int) -> None:
        """Add tokens after the prompt, the best one each time."""
        self.length, self.caches, scores = self.after_prompt
        for _ in range(count):
            scores = self.append(scores.argmax()[None])


class Placed:
    """A text that our decoder continues."""

    def __init__(self, session: Any, prompt: int, capacity: int) -> None:
        self.decoder, self.prompt = session.decoder(capacity=capacity), prompt
        self.scores = self.decoder.append(np.full(prompt, FIRST))

    def generate(self, count: int) -> None:
        """Add tokens after the prompt, the best one each time."""
        self.decoder.truncate(self.prompt)
        scores = self.scores
        for _ in range(count):
            scores = self.decoder.append(scores.argmax(-1))


def main(side: str, model: str, threads: int, prompt: int, capacity: int) -> None:
    """Serve tokens until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not look like an answer
    session = open_session(side, model, threads)
    text = (Placed if side == "edgegrad" else Bound)(session, prompt, capacity)
    for line in sys.stdin:
        text.generate(int(line))
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
