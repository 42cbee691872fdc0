"""Pictures of the documentation, in docs/pictures.

    python -m engine.tools.dev.pictures

They show the results of a small training on scikit-learn's digits, in the headless browser that
tests use.  Times in them belong to the machine that made them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.data.arrays import Arrays
from engine.tools.dev.browser import browser
from engine.trainer.schedules import Cosine

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"
WIDTH, HEIGHT = 1080, 860
PARAMETERS = {
    "conv_weight": (8, 1, 3, 3), "conv_bias": (8,), "fc1_weight": (512, 32), "fc1_bias": (32,),
    "fc2_weight": (32, 10),
}  # fmt: skip
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,1,8,8] image) => (float[N,10] scores) {
    c = Conv<pads = [1,1,1,1]>(image, conv_weight, conv_bias)
    r = Relu(c)
    f = Flatten(r)
    h = MatMul(f, fc1_weight)
    b = Add(h, fc1_bias)
    a = Relu(b)
    scores = MatMul(a, fc2_weight)
}"""


def model() -> onnx.ModelProto:
    """Return a small convolutional network with random weights."""
    made = parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in PARAMETERS.items():
        inputs = shape[0] if len(shape) == 2 else np.prod(shape[1:])
        values = rng.standard_normal(shape) * (len(shape) > 1) * np.sqrt(2 / inputs)
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return made


def train(folder: Path, epochs: int = 12) -> None:
    """Train the network on digits, in a run folder."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1200], order[1200:]
    trainer = Trainer.from_onnx(model(), CrossEntropyLoss(), AdamW(3e-3), seed=0)
    trainer.fit(
        Arrays((images[train], digits.target[train]), classes=names),
        validation=(images[test], digits.target[test]),
        epochs=epochs,
        metrics="accuracy",
        schedule=Cosine(),
        folder=folder,
    )


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, browser() as chromium:
        folder = Path(place) / "digits"
        train(folder)
        for name, section, dark in (("report", "", False), ("report-dark", "confusion", True)):
            page = chromium.page(folder / "report.html", WIDTH, HEIGHT, dark=dark)
            if section:
                page.ask(f"document.getElementById('{section}').scrollIntoView()")
            page.picture(PICTURES / f"{name}.png", whole=False)
            page.close()


if __name__ == "__main__":
    main()
