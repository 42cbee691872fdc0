"""Learn from sensors.csv which readings are normal, and find the faults in test.csv.

`python train.py --resume` continues an interrupted run.
"""

from __future__ import annotations

import sys

import numpy as np

from edgegrad import Trainer
from edgegrad.artifacts import AdamW
from edgegrad.data import Csv
from edgegrad.trainer import Cosine

from data import CHANNELS

GOAL = 0.9  # the least precision and recall
NORMAL = 0.995  # the share of normal readings below the threshold


def train(epochs: int = 40, resume: bool = False) -> tuple[Trainer, float]:
    """Train; writes run/, artifacts/ and inference.onnx.

    Returns the trainer, and the error above which a reading is reported as faulty.
    """
    normal, validation = Csv("sensors.csv", target=None, normalize=False).split(0.2)
    trainer = Trainer.from_onnx("forward.onnx", None, AdamW(5e-3), folder="artifacts", seed=0)
    trainer.fit(
        normal, validation=validation, epochs=epochs, schedule=Cosine(), folder="run", resume=resume
    )
    trainer.export("inference.onnx")
    trainer.save("artifacts/checkpoint")  # the start of training on a device
    return trainer, float(np.quantile(trainer.predict(validation), NORMAL))


def measure(trainer: Trainer, threshold: float) -> tuple[float, float]:
    """Precision and recall of the readings of test.csv that are reported as faulty."""
    test = Csv("test.csv", target="fault", features=CHANNELS, normalize=False)
    values, faults = test.take(np.arange(len(test)))
    told, faulty = trainer.predict(values) > threshold, faults != test.classes.index("none")
    right = (told & faulty).sum()
    precision, recall = float(right / told.sum()), float(right / faulty.sum())
    print(f"readings with an error above {threshold:.4f} count as faulty")
    print(f"precision {precision:.1%}, recall {recall:.1%}")
    return precision, recall


if __name__ == "__main__":
    sys.exit(min(measure(*train(resume="--resume" in sys.argv))) < GOAL)
