"""Architectures by name: how each is built, what it takes, and what it is for.

docs/models.md shows this table: `python -m engine.tools.dev.tables` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

from engine.base.errors import NameNotFoundError, suggest_nearest
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models import (
    images,
    mobilenets,
    pre_norm,
    recurrent,
    resnets,
    sound,
    texts,
    unet,
)

Answer = Literal["sample", "position", "pixel", "input"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture that is made by its name.

    build: makes its forward graph, of the shape of a sample, the number of outputs and `options`;
        it also takes a `seed`.
    shape: the shape of a sample, with a word for each size that the data decide.
    answers: each sample, position or pixel has scores of its own, or the input itself is answered.
    head: the last layers, whose shapes depend on the number of outputs: how their names begin.
    purpose, data: what it is for, and what it learns from, for people.
    paper: where it is described.
    names: whose names of parameters it has, for files of weights.
    options: further arguments of `build`.
    reads: options that it needs of data read from files, by the kind of the data.
    needs_shape: the words in `shape` must become numbers when it is built.
    """

    build: Callable[..., Graph]
    shape: tuple[int | str, ...]
    purpose: str
    data: str
    paper: str
    head: tuple[str, ...]
    answers: Answer = "sample"
    names: str = "its own"
    options: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs_shape: bool = False

    @property
    def name(self) -> str:
        """The name by which it is made."""
        return self.build.__name__.removeprefix("build_")

    def takes(self, option: str) -> bool:
        """Return whether `build` has an argument: `words`, how many there are; `pad`, the number
        that fills texts up.
        """
        return option in signature(self.build).parameters

    @property
    def feature(self) -> TensorType:
        """The type of its input, as far as it is known before the data are."""
        return TensorType("i64" if self.takes("words") else "f32", ("batch", *self.shape))


_PHOTOS = "a folder of pictures for each class"
_TEXTS = "a folder of texts for each class, or a CSV of texts and labels"
ARCHITECTURES = {
    kind.name: kind
    for kind in (
        Architecture(
            images.build_mlp, ("features",), "rows of numbers: classes or values",
            "a CSV, arrays, a DataFrame", "", ("4.",), options={"hidden": (128, 64)},
            needs_shape=True,
        ),
        Architecture(
            images.build_cnn, (3, 32, 32), "small pictures, such as digits and icons", _PHOTOS, "",
            ("fc2.",), names="PyTorch's MNIST example",
        ),
        Architecture(
            mobilenets.build_mobilenet_v2, (3, 224, 224), "photos on small devices", _PHOTOS,
            "1801.04381", ("classifier.1.",), names="torchvision", options={"dropout": 0.2},
        ),
        Architecture(
            mobilenets.build_mobilenet_v3_small, (3, 224, 224),
            "photos on small devices: the fastest of these", _PHOTOS, "1905.02244",
            ("classifier.3.",), names="torchvision", options={"dropout": 0.2},
        ),
        Architecture(
            resnets.build_resnet18, (3, 224, 224), "photos, where memory and time allow", _PHOTOS,
            "1512.03385", ("fc.",), names="torchvision",
        ),
        Architecture(
            pre_norm.build_vit_tiny, (3, 224, 224), "photos, from weights of a large training",
            _PHOTOS, "2012.12877", ("head.",), names="timm: vit_tiny_patch16_224",
        ),
        Architecture(
            texts.build_textcnn, (128,), "short texts: topics, intents, sentiment", _TEXTS,
            "1408.5882", ("classifier.",), options={"dropout": 0.5},
            reads={"text": {"labelled": True}},
        ),
        Architecture(
            pre_norm.build_text_transformer, (128,), "texts whose words depend on one "
                                                     "another", _TEXTS,
            "1706.03762", ("head.",), reads={"text": {"labelled": True}},
        ),
        Architecture(
            recurrent.build_gru_tagger, ("tokens",), "a tag for each word, such as names of places",
            "files of words and their tags, or arrays of both", "1412.3555",
            ("classifier.",), answers="position",
        ),
        Architecture(
            sound.build_ds_cnn, (1, "bands", "frames"), "keywords and other short sounds",
            "a folder of sounds for each class", "1711.07128", ("classifier.",),
        ),
        Architecture(
            images.build_autoencoder, ("features",), "faults: what it cannot guess is unusual",
            "rows of numbers without labels: a CSV, an array", "", (),
            answers="input", needs_shape=True, reads={"csv": {"target": ""}},
        ),
        Architecture(
            unet.build_unet_small, (3, 128, 128), "a class for each pixel, such as road and sky",
            "a folder of pictures and a folder of masks", "1505.04597",
            ("head.",), answers="pixel",
        ),
    )
}  # fmt: skip


def find_architecture(name: str) -> Architecture:
    """Return the architecture of a name.

    Raises:
        NameNotFoundError: there is none; the message has the nearest names, and all of them.
    """
    if name not in ARCHITECTURES:
        raise NameNotFoundError(
            f"no model {name!r}{suggest_nearest(name, ARCHITECTURES)}; there are "
            f"{', '.join(ARCHITECTURES)}, and paths of ONNX files"
        )
    return ARCHITECTURES[name]
