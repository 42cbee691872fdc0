"""Models for measurements, as forward graphs with random weights: `WORKLOADS` lists them.

`engine.models` builds them, node by node, so that a board can train them where no exporter is
installed.  Each has the layers of a known architecture; bench/twins/ has the same in PyTorch.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.images import cnn, mlp
from engine.models.mobilenets import mobilenet_v2, mobilenet_v3_small
from engine.models.post_norm import BERT_WORDS, minilm, transformer
from engine.models.pre_norm import GPT2_WORDS, gpt2, vit_tiny
from engine.models.recurrent import lstm
from engine.models.resnets import resnet18, resnet50
from engine.models.sound import RATE, wav2vec2
from engine.tools.benchmark.workload import Workload

_IMAGES = (8, 3, 224, 224)
_WHOLE = (
    Workload("mlp", (64, 784), mlp),
    Workload("cnn", (64, 1, 28, 28), cnn),
    Workload("mobilenet", _IMAGES, mobilenet_v2),
    Workload("mobilenet_v3", _IMAGES, mobilenet_v3_small),
    Workload("resnet18", _IMAGES, resnet18),
    Workload("resnet50", _IMAGES, resnet50),
    Workload("vit", _IMAGES, vit_tiny),
    Workload("transformer", (8, 128, 256), transformer),
    Workload("minilm", (8, 128), minilm, BERT_WORDS),
    Workload("gpt2", (8, 128), gpt2, GPT2_WORDS, GPT2_WORDS, labels=128),
    Workload("wav2vec2", (4, 1, RATE), wav2vec2),
    Workload("lstm", (32, 100, 64), lstm),
)
_LAST = {
    "mobilenet": "classifier.1.", "mobilenet_v3": "classifier.3.", "resnet18": "fc.",
    "vit": "head.",
}  # fmt: skip

# By name; NAME_head trains the last layer of NAME alone.
WORKLOADS = {work.name: work for work in _WHOLE} | {
    f"{work.name}_head": replace(work, name=f"{work.name}_head", trained=(_LAST[work.name],))
    for work in _WHOLE
    if work.name in _LAST
}
# The default of commands.
USUAL = ("mlp", "cnn", "mobilenet", "transformer", "minilm")
