"""Note in the metadata of a model that lists its layers with adapters."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from engine.base.errors import ModelError
from engine.system.files import NOTE

KEY = "lora"  # of `Interface.notes`
METADATA = NOTE + KEY  # of the metadata of a model
DOWN, UP = (
    ".lora_A.weight",
    ".lora_B.weight",
)  # peft's suffixes of A and B


@dataclass(frozen=True, slots=True)
class NotedLayer:
    """Layer with an adapter.

    weight: the initializer that the layer's weight comes from.
    nodes: the names of the products that the adapter is added to, one for each use of the layer.
    """

    weight: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Adapters of a model: y = W x + scale B (A x), A of `rank` rows.

    alpha: the numerator of the scale.
    dropout: share of x that a training step drops before A.
    rank_stabilised: the scale is alpha / sqrt(rank) instead of alpha / rank.
    layers: by the name of the layer, to which its parameters add `DOWN` and `UP`.
    """

    rank: int
    alpha: float
    dropout: float
    rank_stabilised: bool
    layers: dict[str, NotedLayer]

    @classmethod
    def parse(cls, text: str, where: str, values: Collection[str]) -> Note:
        """Read a note.

        where: the name of the model in errors.  values: names that include its parameters.

        Raises:
            ModelError: the note is damaged, or a parameter that it names is missing.
        """
        try:
            fields = json.loads(text)
            layers = {
                str(name): NotedLayer(str(layer["weight"]), tuple(map(str, layer["nodes"])))
                for name, layer in fields["layers"].items()
            }
            note = cls(
                int(fields["rank"]),
                float(fields["alpha"]),
                float(fields["dropout"]),
                bool(fields["rank_stabilised"]),
                layers,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelError(f"{where}: the note of its adapters is damaged: {error!r}") from None
        if note.rank < 1:
            raise ModelError(
                f"{where}: the note about its adapters gives the rank {note.rank}; "
                "expected 1 or more"
            )
        lost = [name for name in note.list_parameters() if name not in values]
        if lost:
            raise ModelError(f"{where}: the adapter's parameter {lost[0]!r} is missing")
        return note

    def write(self) -> str:
        """Return the note as `parse` reads it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def scale(self) -> float:
        """The factor of B (A x)."""
        return compute_scale(self.rank, self.alpha, self.rank_stabilised)

    def list_parameters(self) -> list[str]:
        """Return the names of all adapter parameters, layer by layer, A before B."""
        return [layer + end for layer in self.layers for end in (DOWN, UP)]

    def select(self, layers: Collection[str]) -> Note:
        """Return the note of a model that has the adapters of these layers alone."""
        return replace(self, layers={n: layer for n, layer in self.layers.items() if n in layers})


def compute_scale(rank: int, alpha: float, rank_stabilised: bool) -> float:
    """Return alpha / rank, or alpha / sqrt(rank)."""
    return alpha / (math.sqrt(rank) if rank_stabilised else rank)
