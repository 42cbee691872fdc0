"""LoRA for any forward ONNX model: training of small matrices in addition to frozen weights.

    from edgegrad import Trainer, lora

    trainer = Trainer.from_onnx("forward.onnx", "cross_entropy", lora="attn.*(q|v)")
    trainer.fit(data)
    lora.Adapter.of(trainer).save("adapter")        # adapter_model.safetensors, adapter_config.json
    trainer.export("trained.onnx")
    lora.merge("trained.onnx", "merged.onnx")

Importing it needs only numpy; functions that change models import `onnx` when they are called.
"""

from engine.lora.adapter import Adapter
from engine.lora.adapter_options import Lora
from engine.lora.bank import Adapters
from engine.lora.models import Adapted, adapt, merge, open_inputs, parameters

__all__ = [
    "Adapted",
    "Adapter",
    "Adapters",
    "Lora",
    "adapt",
    "merge",
    "open_inputs",
    "parameters",
]
