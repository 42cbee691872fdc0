"""Models to measure with, as forward-only graphs with random weights: `WORKLOADS` lists them.

They are made node by node, from this package alone, so that a board can train them where no
exporter is installed.  Each has the layers of a known architecture; bench/peer.py has the same in
PyTorch.
"""

from __future__ import annotations

from engine.tools.workloads.images import cnn, mlp
from engine.tools.workloads.mobilenets import mobilenet
from engine.tools.workloads.sequences import transformer
from engine.tools.workloads.text import WORDS, minilm
from engine.tools.workloads.workload import Workload

WORKLOADS = {
    work.name: work
    for work in (
        Workload("mlp", (64, 784), mlp),
        Workload("cnn", (64, 1, 28, 28), cnn),
        Workload("mobilenet", (8, 3, 224, 224), mobilenet),
        Workload("transformer", (8, 128, 256), transformer),
        Workload("minilm", (8, 128), minilm, WORDS),
    )
}
