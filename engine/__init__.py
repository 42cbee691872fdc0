"""Train ONNX models on the device: artifacts in, trained ONNX out."""

__version__ = "0.1.0"


def set_seed(seed: int) -> None:
    """Draw other random numbers from here on, see `engine.noise`."""
    from engine import noise

    noise.set_seed(seed)
