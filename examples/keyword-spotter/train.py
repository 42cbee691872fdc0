"""Teach the network the words of sounds/, and measure it on the sounds of test/.

`python train.py --resume` continues an interrupted run.
"""

from __future__ import annotations

import sys

import numpy as np

from edgegrad import Trainer
from edgegrad.artifacts import AdamW, CrossEntropyLoss
from edgegrad.data import Sounds, batches
from edgegrad.trainer import OneCycle

GOAL = 0.9  # the accuracy to reach on the test sounds


def disturb(sample: tuple[np.ndarray, ...], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Shift the sound by up to a tenth of a second, and add noise."""
    sound, word = sample
    moved = np.roll(sound, rng.integers(-1600, 1601))
    return moved + rng.uniform(0, 0.01) * rng.standard_normal(len(sound), np.float32), word


def train(epochs: int = 20, resume: bool = False) -> Trainer:
    """Train; writes run/, artifacts/ and inference.onnx."""
    sounds = Sounds("sounds")
    mine, validation = sounds.split(0.15)
    trainer = Trainer.from_onnx(
        "forward.onnx",
        CrossEntropyLoss(),
        AdamW(5e-3),
        classes=len(sounds.classes),
        folder="artifacts",
        seed=0,
    )
    trainer.fit(
        batches(mine, shuffle=True, augment=disturb),
        validation=validation,
        epochs=epochs,
        metrics="accuracy",
        schedule=OneCycle(),
        folder="run",
        resume=resume,
    )
    trainer.export("inference.onnx")
    trainer.save("artifacts/checkpoint")  # the start of training on a device
    return trainer


def measure(trainer: Trainer) -> float:
    """Return the accuracy on the test sounds."""
    accuracy = trainer.evaluate(Sounds("test"), metrics="accuracy")["accuracy"]
    print(f"{accuracy:.1%} of the test sounds are recognised correctly")
    return accuracy


if __name__ == "__main__":
    sys.exit(measure(train(resume="--resume" in sys.argv)) < GOAL)
