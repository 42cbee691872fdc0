"""Models for measurements, as forward graphs with random weights: `WORKLOADS` lists them.

`engine.models` builds them, node by node, so that a board can train them where no exporter is
installed.  Each has the layers of a known architecture; bench/twins/ has the same in PyTorch.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.images import build_cnn, build_mlp
from engine.models.mobilenets import build_mobilenet_v2, build_mobilenet_v3_small
from engine.models.post_norm import BERT_WORDS, build_minilm, build_transformer
from engine.models.pre_norm import GPT2_WORDS, build_gpt2, build_vit_tiny
from engine.models.recurrent import build_lstm
from engine.models.resnets import build_resnet18, build_resnet50
from engine.models.sound import RATE, build_wav2vec2
from engine.tools.benchmark.workload import Workload

_IMAGES = (8, 3, 224, 224)
_WHOLE = (
    Workload("mlp", (64, 784), build_mlp, title="MLP 784-500-10"),
    Workload("cnn", (64, 1, 28, 28), build_cnn, title="CNN of 2 convolutions and 2 layers, 28x28"),
    Workload("mobilenet", _IMAGES, build_mobilenet_v2, title="MobileNetV2, 224x224"),
    Workload("mobilenet_v3", _IMAGES, build_mobilenet_v3_small, title="MobileNetV3-Small, 224x224"),
    Workload("resnet18", _IMAGES, build_resnet18, title="ResNet-18, 224x224"),
    Workload("resnet50", _IMAGES, build_resnet50, title="ResNet-50, 224x224"),
    Workload("vit", _IMAGES, build_vit_tiny, title="ViT-Tiny, 224x224"),
    Workload("transformer", (8, 128, 256), build_transformer, title="encoder of 4 layers of 256"),
    Workload("minilm", (8, 128), build_minilm, BERT_WORDS, title="MiniLM, 128 positions"),
    Workload(
        "gpt2", (8, 128), build_gpt2, GPT2_WORDS, GPT2_WORDS, labels=128,
        title="GPT-2 of 2 layers of 256",
    ),
    Workload("wav2vec2", (4, 1, RATE), build_wav2vec2, title="wav2vec 2.0, a second of sound"),
    Workload("lstm", (32, 100, 64), build_lstm, title="LSTM of 256, 100 steps"),
)  # fmt: skip
_LAST = {
    "mobilenet": "classifier.1.", "mobilenet_v3": "classifier.3.", "resnet18": "fc.",
    "vit": "head.",
}  # fmt: skip

# By name; NAME_head trains the last layer of NAME alone.
WORKLOADS = {work.name: work for work in _WHOLE} | {
    f"{work.name}_head": replace(
        work,
        name=f"{work.name}_head",
        title=f"{work.title}, its last layer",
        trained=(_LAST[work.name],),
    )
    for work in _WHOLE
    if work.name in _LAST
}
# The default of commands.
USUAL = ("mlp", "cnn", "mobilenet", "transformer", "minilm")
