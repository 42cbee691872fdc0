"""Models for measurements, as forward graphs with random weights: `WORKLOADS` lists them.

They are made node by node, from this package alone, so that a board can train them where no
exporter is installed.  Each has the layers of a known architecture; bench/twins/ has the same in
PyTorch.
"""

from __future__ import annotations

from dataclasses import replace

from engine.tools.benchmark.images import cnn, mlp
from engine.tools.benchmark.mobilenets import mobilenet, mobilenet_v3
from engine.tools.benchmark.post_norm import BERT_WORDS, minilm, transformer
from engine.tools.benchmark.pre_norm import GPT2_WORDS, gpt2, vit
from engine.tools.benchmark.recurrent import lstm
from engine.tools.benchmark.resnets import resnet18, resnet50
from engine.tools.benchmark.sound import RATE, wav2vec2
from engine.tools.benchmark.workload import Workload

_IMAGES = (8, 3, 224, 224)
_WHOLE = (
    Workload("mlp", (64, 784), mlp),
    Workload("cnn", (64, 1, 28, 28), cnn),
    Workload("mobilenet", _IMAGES, mobilenet),
    Workload("mobilenet_v3", _IMAGES, mobilenet_v3),
    Workload("resnet18", _IMAGES, resnet18),
    Workload("resnet50", _IMAGES, resnet50),
    Workload("vit", _IMAGES, vit),
    Workload("transformer", (8, 128, 256), transformer),
    Workload("minilm", (8, 128), minilm, BERT_WORDS),
    Workload("gpt2", (8, 128), gpt2, GPT2_WORDS, GPT2_WORDS, labels=128),
    Workload("wav2vec2", (4, 1, RATE), wav2vec2),
    Workload("lstm", (32, 100, 64), lstm),
)
_LAST = {"mobilenet": "fc.", "mobilenet_v3": "fc2.", "resnet18": "fc.", "vit": "fc."}

# By name; NAME_head trains the last layer of NAME alone.
WORKLOADS = {work.name: work for work in _WHOLE} | {
    f"{work.name}_head": replace(work, name=f"{work.name}_head", trained=(_LAST[work.name],))
    for work in _WHOLE
    if work.name in _LAST
}
# The default of commands.
USUAL = ("mlp", "cnn", "mobilenet", "transformer", "minilm")
