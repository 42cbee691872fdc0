"""Adapter: the values that a training run with adapters trains, in files of other programs.

A folder as in peft: `adapter_model.safetensors`, whose tensors are called
`base_model.model.<layer>.lora_A.weight`, and `adapter_config.json`.  Or an `.onnx_adapter` of
onnxruntime, whose parameters have the names of the model's.  Shapes are the same in both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.base.aliases import Array, StrPath
from engine.base.errors import (
    CheckpointError,
    InputError,
    NameNotFoundError,
    ShapeError,
    StateError,
    suggest_nearest,
)
from engine.base.signatures import AT_LEAST_1, BELOW_1, check_arguments
from engine.checkpoint import onnx_adapter, safetensors
from engine.graphs.io.note import DOWN, KEY, UP, Note, compute_scale
from engine.graphs.io.writable_model import Model
from engine.lora import models
from engine.system import files

if TYPE_CHECKING:
    from engine.training.module import Module


PREFIX = "base_model.model."  # peft's, before the names of the module's own parameters
TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ONNX = ".onnx_adapter"
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern", "trainable_token_indices")


class AdaptableTrainer(Protocol):
    """A trainer: an object around a module."""

    @property
    def module(self) -> Module: ...


@check_arguments(rank=AT_LEAST_1, dropout=BELOW_1)
@dataclass(frozen=True, eq=False)
class Adapter:
    """The values of an adapter: its matrices, and the options that they were made with.

    Attributes:
        tensors: By name: A and B of each layer, and fully trained parameters.
        rank: Rows of A.
        alpha: The numerator of the scale; None if the file does not contain it, such as an
            `.onnx_adapter`.
        dropout, rank_stabilised: See `Lora`.
    """

    tensors: Mapping[str, Array]
    rank: int
    alpha: float | None = None
    dropout: float = 0.0
    rank_stabilised: bool = False
    whole: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        whole = tuple(n for n in self.tensors if not n.endswith((DOWN, UP)))
        object.__setattr__(self, "whole", whole)

    @classmethod
    def of(cls, trained: AdaptableTrainer | Module) -> Adapter:
        """Return a copy of the current adapter of a trainer or module.

        Raises:
            InputError: its model has no adapters.
        """
        module = get_module(trained)
        note, state = note_of(module), module.session.state
        names = sorted(state.trainable_names())
        tensors = {name: state.parameters[name].data.copy() for name in names}
        return cls(tensors, note.rank, note.alpha, note.dropout, note.rank_stabilised)

    @classmethod
    def of_model(cls, model: Model) -> Adapter:
        """Return the adapter of a model file that `Trainer.export` has written.

        model: a path, bytes or `ModelProto`.

        Raises:
            InputError: the model has no adapters, or they have no values.
            FileError, ModelError: the model cannot be read.
        """
        note, values = models.read_values(model)
        return cls(values, note.rank, note.alpha, note.dropout, note.rank_stabilised)

    def put(self, trained: AdaptableTrainer | Module) -> None:
        """Set the adapter of a trainer or module to these values, without planning again.

        Layers are found by name, even if one of the names has more leading scopes, as for a module
        inside another.  If the scale of the model differs, B is multiplied by the quotient, so that
        the result is the same.

        Raises:
            InputError: its model has no adapters.
            NameNotFoundError: a parameter is missing here, or not in the model.
            ShapeError: a parameter has another shape, for example because of another rank.  Nothing
            has changed then.
        """
        module = get_module(trained)
        note, state = note_of(module), module.session.state
        if not state.loaded:
            raise StateError("the state was made from a nominal checkpoint: load values first")
        scale, own = note.scale, state.trainable_names()
        if self.alpha is not None:
            scale = compute_scale(self.rank, self.alpha, self.rank_stabilised)
        places = _pair_names(self.tensors, own)
        values: dict[str, Array] = {}
        for name in own:
            value, target = self.tensors[places[name]], state.parameters[name].data
            if value.shape != target.shape:
                raise ShapeError(
                    f"adapter: {places[name]!r} is {list(value.shape)}, and {list(target.shape)} "
                    f"in the model, whose adapters are of rank {note.rank}"
                )
            values[name] = value * (scale / note.scale) if name.endswith(UP) else value
        for name, value in values.items():
            state.parameters[name].data[...] = value

    # --- files

    @classmethod
    def load(cls, path: StrPath) -> Adapter:
        """Read a folder that peft has written, its `.safetensors` file, or an `.onnx_adapter`.

        Raises:
            FileError: there is no such file, or it cannot be read.
            CheckpointError: it is damaged, or of a kind of adapter that is not supported.
            DTypeError: a tensor has an element type that is not supported.
        """
        place = os.fspath(path)
        if place.endswith(ONNX):
            tensors = onnx_adapter.read(place)
            return cls(tensors, _find_rank(tensors, place))
        if os.path.isdir(place):
            place = os.path.join(place, TENSORS)
        tensors = {
            name.removeprefix(PREFIX): array for name, array in safetensors.read(place)[0].items()
        }
        config = os.path.join(os.path.dirname(place), CONFIG)
        rank = _find_rank(tensors, place)
        return cls(tensors, rank, **_read_settings(config, rank) if os.path.exists(config) else {})

    def save(self, path: StrPath) -> None:
        """Write a folder that peft can read, or an `.onnx_adapter` if the path ends so.

        A crash leaves the old adapter, the new one, or a folder without tensors.

        Raises:
            FileError: a file cannot be written.
        """
        place = os.fspath(path)
        if place.endswith(ONNX):
            onnx_adapter.write(place, dict(sorted(self.tensors.items())))
            return
        files.make_folder(place)
        layers = sorted(n.removesuffix(DOWN) for n in self.tensors if n.endswith(DOWN))
        whole = sorted({n.rpartition(".")[0] or n for n in self.whole})
        config = {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "inference_mode": True,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "use_rslora": self.rank_stabilised,
            "target_modules": layers,
            "modules_to_save": whole or None,
            "bias": "none",
            "fan_in_fan_out": False,
        }
        tensors = {PREFIX + name: array for name, array in self.tensors.items()}
        with files.staging(place) as stage:
            moves = [(os.path.join(stage, n), os.path.join(place, n)) for n in (TENSORS, CONFIG)]
            safetensors.write(moves[0][0], tensors, {"format": "pt"})
            files.write(moves[1][0], [json.dumps(config, indent=2).encode()])
            files.replace_together(moves, keys=[moves[0][1]])


def get_module(trained: AdaptableTrainer | Module) -> Module:
    """Return the module of a trainer, or a module itself."""
    source: Any = trained
    module: Module = getattr(source, "module", source)
    return module


def note_of(module: Module) -> Note:
    """Return the training model's note on its adapters.

    Raises:
        InputError: it has none.
    """
    text = module.session.training.interface.notes.get(KEY)
    if text is None:
        raise InputError("the training model has no adapters; lora.adapt gives a model some")
    return Note.parse(
        text, module.session.training.what, [n for n, _ in module.session.state.parameters]
    )


def _pair_names(given: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return the given name for each wanted name; leading scopes may differ.

    Raises:
        NameNotFoundError: a name is missing, or superfluous.
    """
    known, given_by_name = dict.fromkeys(given), dict[str, str]()
    for name in wanted:
        fits = [n for n in known if n == name] or [
            n for n in known if n.endswith("." + name) or name.endswith("." + n)
        ]
        if len(fits) != 1:
            raise NameNotFoundError(
                f"adapter: it has no parameter {name!r}{suggest_nearest(name, known)}"
            )
        given_by_name[name] = fits[0]
    more = [n for n in known if n not in set(given_by_name.values())]
    if more:
        raise NameNotFoundError(
            f"adapter: the model has no parameter {more[0]!r} among those that are trained"
            f"{suggest_nearest(more[0], given_by_name)}"
        )
    return given_by_name


def _find_width(down: Array | None, up: Array) -> int:
    """Return the rank of a B: [..., out, r], or [out, r, 1, ...] of a convolution.

    down: the A beside it, which tells batches of matrices, [..., r, in], from filters of signals.
    """
    if up.ndim == 3 and down is not None:
        is_batch = down.ndim == 3 and (up.shape[0], up.shape[2]) == down.shape[:2]
        return int(up.shape[2] if is_batch else up.shape[1])
    return int(up.shape[1] if up.ndim > 3 else up.shape[-1])


def _find_rank(tensors: Mapping[str, Array], where: str) -> int:
    """Return the rank of an adapter, by the width of a B."""
    ranks = {
        _find_width(tensors.get(name.removesuffix(UP) + DOWN), array)
        for name, array in tensors.items()
        if name.endswith(UP) and array.ndim > 1
    }
    if len(ranks) != 1:
        raise CheckpointError(
            f"{where}: matrices B of ranks {sorted(ranks)}; expected an adapter of one rank"
            if ranks
            else f"{where}: it has no tensor '...{UP}', so it is not a LoRA adapter"
        )
    return ranks.pop()


def _read_settings(path: str, rank: int) -> dict[str, Any]:
    """Return the settings of the scale in an adapter_config.json.

    Raises:
        CheckpointError: it is damaged, or contains unsupported settings.
    """
    try:
        config = json.loads(files.read(path, "adapter's configuration"))
        kind = config.get("peft_type", "LORA")
        if kind != "LORA":
            raise CheckpointError(f"{path}: an adapter of type {kind!r}; supported: 'LORA'")
        more = [key for key in _UNSUPPORTED if config.get(key)]
        if more or config.get("bias", "none") != "none":
            raise CheckpointError(f"{path}: {(more or ['bias'])[0]!r} is not supported")
        if int(config["r"]) != rank:
            raise CheckpointError(f"{path}: r is {config['r']}, the tensors are of rank {rank}")
        return {
            "alpha": float(np.float64(config["lora_alpha"])),
            "dropout": float(config.get("lora_dropout", 0.0)),
            "rank_stabilised": bool(config.get("use_rslora", False)),
        }
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: damaged, or no adapter_config.json: {error!r}") from None
