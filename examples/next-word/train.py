"""Train the network on texts/, measure it on test.txt, and let it continue some texts.

`python train.py --resume` continues an interrupted run.
"""

from __future__ import annotations

import sys

import numpy as np
from tokenizers import Tokenizer

from edgegrad import Session, Trainer
from edgegrad.artifacts import AdamW, CrossEntropyLoss
from edgegrad.data import Texts
from edgegrad.trainer import Callback, Cosine, Fit

from model import LENGTH

BEGINNINGS = ("hi anna, please", "see you at the", "thank you")
GOAL = 0.1  # the largest perplexity, relative to a model of token frequencies (unigrams)


def unigram_perplexity(train: np.ndarray, test: np.ndarray, vocabulary: int) -> float:
    """Return the perplexity of a model that knows only how often each token occurs."""
    counts = 1 + np.bincount(train, minlength=vocabulary)
    return float(np.exp(-np.log(counts / counts.sum())[test].mean()))


def complete(session: Session, tokenizer: Tokenizer, text: str, count: int = 8) -> str:
    """Return a text, continued by the `count` tokens that the network finds most likely."""
    tokens = tokenizer.encode(text).ids[-(LENGTH - count) :]
    tokens += session.generate(tokens, count).tolist()
    return str(tokenizer.decode(tokens)).splitlines()[0]


class Writing(Callback):
    """Shows at the end of every epoch how the network continues a text."""

    def on_fit_begin(self, fit: Fit) -> None:
        self.tokenizer = Tokenizer.from_file("tokenizer.json")
        self.session = fit.trainer.session("decoder.onnx")

    def on_epoch_end(self, fit: Fit) -> None:
        print(complete(self.session, self.tokenizer, BEGINNINGS[0]))


def train(epochs: int = 10, resume: bool = False) -> Trainer:
    """Train; writes run/, artifacts/ and inference.onnx."""
    mine, validation = Texts("texts", "tokenizer.json", LENGTH).split(0.1)
    trainer = Trainer.from_onnx(
        "forward.onnx", CrossEntropyLoss(), AdamW(3e-3), folder="artifacts", seed=0
    )
    trainer.fit(
        mine,
        validation=validation,
        epochs=epochs,
        batch_size=16,
        metrics="perplexity",
        schedule=Cosine(warmup=0.05),
        callbacks=[Writing()],
        folder="run",
        resume=resume,
    )
    trainer.export("inference.onnx")
    trainer.save("artifacts/checkpoint")  # the start of training on a device
    return trainer


def measure(trainer: Trainer) -> float:
    """Return the perplexity of the test text, divided by the perplexity of unigrams."""
    texts, test = (Texts(path, "tokenizer.json", LENGTH) for path in ("texts", "test.txt"))
    tokenizer = Tokenizer.from_file("tokenizer.json")
    session = trainer.session("decoder.onnx")
    for begin in BEGINNINGS:
        print(complete(session, tokenizer, begin))
    reached = trainer.evaluate(test, metrics="perplexity")["perplexity"]
    unigram = unigram_perplexity(texts.tokens, test.tokens, tokenizer.get_vocab_size())
    print(f"the perplexity of the test text is {reached:.2f}; unigrams reach {unigram:.1f}")
    return reached / unigram


if __name__ == "__main__":
    sys.exit(measure(train(resume="--resume" in sys.argv)) > GOAL)
