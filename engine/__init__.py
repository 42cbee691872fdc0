"""Train ONNX models on the device: artifacts in, trained ONNX out."""

from typing import TYPE_CHECKING, Any

from engine.base.package import VERSION

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer as Trainer

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Return `engine.Trainer`, imported at its first use."""
    if name == "Trainer":
        from engine.trainer.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_seed(seed: int) -> None:
    """Set the seed of all random numbers of this process, see `engine.plan.noise`.

    Raises:
        DTypeError: the seed is not an integer.
        InputError: it does not fit into 64 bits.
    """
    from engine.plan import noise

    noise.set_seed(seed)


def supported(model: Any) -> Any:
    """Return a table of the nodes of an ONNX model that tells which of them can be trained.

    model: a path, bytes or `ModelProto`.

    Each row has the fields node, op, domain, opset, status and reason; `print` shows the table.

    Raises:
        FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
    """
    from engine.training import backend

    return backend.supported(model)
