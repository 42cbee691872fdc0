"""The network of the page, as artifacts: a stroke of 32 points is one of three gestures.

`python make.py` writes gestures/.  Then

    edgegrad build gestures/ --target wasm32,wasm32-relaxed --bindings js --batch 1,8 \\
        --name gestures -o build/
    python -m http.server

makes the package that index.html loads, with the modules that it chooses from, and shows it at
http://localhost:8000.  The server hands out files; the training is in the page.
"""

from __future__ import annotations

from pathlib import Path

from edgegrad import Trainer

POINTS = 32  # of a stroke, each with two coordinates


def main() -> None:
    """Write the artifacts."""
    folder = Path("gestures")
    Trainer.from_model("mlp", classes=3, input_shape=[2 * POINTS], folder=folder)
    print(f"wrote {folder}/")


if __name__ == "__main__":
    main()
