"""The families; a module's name begins with the library its models are from."""

from bench.families.models import (
    plain_images,
    plain_sequences,
    plain_tables,
    timm_models,
    torchvision_models,
    transformers_images,
    transformers_sound,
    transformers_text,
)
from bench.families.models.family import FAMILIES

__all__ = [
    "FAMILIES", "plain_images", "plain_sequences", "plain_tables", "timm_models",
    "torchvision_models", "transformers_images", "transformers_sound", "transformers_text",
]  # fmt: skip
