"""Make base.onnx: the network, trained on pictures of other things.

It stands in for a network pre-trained on many pictures.  To use a real one, such as torchvision's
MobileNetV2, export it as docs/from-pytorch.md describes and skip this step.
"""

from __future__ import annotations

from edgegrad import Trainer
from edgegrad.artifacts import AdamW, CrossEntropyLoss
from edgegrad.data import Images, RandomFlip, RandomResizedCrop, batches
from edgegrad.trainer import Cosine

from data import BASE, write
from model import SIZE, network


def main(count: int = 140, epochs: int = 8) -> float:
    """Train on `count` pictures of each thing; returns the accuracy on a tenth of them."""
    write("base", BASE, count, seed=0)
    pictures = Images("base", SIZE)
    train, validation = pictures.split(0.1)
    trainer = Trainer.from_onnx(network(len(BASE)), CrossEntropyLoss(), AdamW(4e-3), seed=0)
    changes = [RandomFlip(), RandomResizedCrop(SIZE, scale=(0.6, 1))]
    history = trainer.fit(
        batches(train, batch_size=16, shuffle=True, augment=changes),
        validation=validation,
        epochs=epochs,
        metrics="accuracy",
        schedule=Cosine(warmup=0.1),
    )
    trainer.export("base.onnx")
    return history["val_accuracy"][-1]


if __name__ == "__main__":
    print(f"{main():.1%} of the validation pictures are classified correctly")
