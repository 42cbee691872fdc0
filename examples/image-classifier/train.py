"""Teach the network of base.onnx the classes of photos/, and measure it on the photos of test/.

`python train.py --resume` continues an interrupted run.
"""

from __future__ import annotations

import sys

from edgegrad import Trainer
from edgegrad.artifacts import AdamW, CrossEntropyLoss
from edgegrad.data import ColorJitter, Images, RandomFlip, RandomResizedCrop, batches
from edgegrad.trainer import Cosine

from model import SIZE

GOAL = 0.85  # the accuracy to reach on the test photos


def train(epochs: int = 20, resume: bool = False) -> Trainer:
    """Train the new last layer, then all layers; writes run/, artifacts/ and inference.onnx."""
    photos = Images("photos", SIZE)
    mine, validation = photos.split(0.2)
    trainer = Trainer.from_onnx(
        "base.onnx",
        CrossEntropyLoss(),
        AdamW(3e-3),
        classes=len(photos.classes),
        frozen_batch_norm=True,  # 16 photos per class are too few to estimate statistics
        folder="artifacts",
        seed=0,
    )
    changes = [RandomFlip(), RandomResizedCrop(SIZE, scale=(0.6, 1)), ColorJitter()]
    trainer.fit(
        batches(mine, batch_size=16, shuffle=True, augment=changes),
        validation=validation,
        epochs=epochs,
        metrics="accuracy",
        schedule=Cosine(),
        unfreeze={"head.*": 0, "*": epochs // 4},
        folder="run",
        resume=resume,
    )
    trainer.export("inference.onnx")
    trainer.save("artifacts/checkpoint")  # the start of training on a device
    return trainer


def measure(trainer: Trainer) -> float:
    """Return the accuracy on the test photos."""
    accuracy = trainer.evaluate(Images("test", SIZE), metrics="accuracy")["accuracy"]
    print(f"{accuracy:.1%} of the test photos are classified correctly")
    return accuracy


if __name__ == "__main__":
    sys.exit(measure(train(resume="--resume" in sys.argv)) < GOAL)
