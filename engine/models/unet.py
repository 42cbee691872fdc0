"""U-Net (Ronneberger et al., arXiv 1505.04597) with batch normalisations."""

from __future__ import annotations

from engine.base.errors import ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import Initial, make_uniform
from engine.models.layers import Layers


class UNet(Layers):
    """Layers of a U-Net: `levels` times half the size and twice the channels, and back.

    drawn: whether weights have PyTorch's initial values.
    """

    def __init__(self, seed: int = 0, drawn: bool = False) -> None:
        super().__init__(seed)
        self.drawn = drawn

    def choose_rule(self, fan_in: int) -> Initial | None:
        return make_uniform(fan_in) if self.drawn else None

    def add_twice(self, x: str, name: str, ci: int, co: int) -> str:
        """Add two convolutions, each normalised and rectified."""
        for n in range(2):
            y = self.add_convolution(
                x, f"{name}.{n}.conv", ci, co, 3, pad=1, rule=self.choose_rule(9 * ci)
            )
            x, ci = self.add_op("Relu", self.add_batch_norm(y, f"{name}.{n}.norm", co)), co
        return x

    def add_body(self, x: str, channels: int, levels: int, width: int) -> str:
        """Add all layers but the last; the result has `width` channels."""
        kept, y, ci = [], x, channels
        for level in range(levels):
            kept.append(self.add_twice(y, f"down.{level}", ci, width << level))
            ci = width << level
            y = self.add_op("MaxPool", kept[-1], kernel_shape=[2, 2], strides=[2, 2])
        y = self.add_twice(y, "middle", ci, width << levels)
        for level in reversed(range(levels)):
            co = width << level
            # PyTorch takes the fan-in of such a weight, [inputs, outputs, 2, 2], from its axis 1.
            rule = self.choose_rule(4 * co)
            weights = (
                self.add_parameter(f"up.{level}.weight", (2 * co, co, 2, 2), rule),
                self.add_parameter(f"up.{level}.bias", (co,), rule),
            )
            y = self.add_op("ConvTranspose", y, *weights, kernel_shape=[2, 2], strides=[2, 2])
            y = self.add_twice(
                self.add_op("Concat", kept[level], y, axis=1), f"joined.{level}", 2 * co, co
            )
        return y


def build_unet_small(
    shape: tuple[int, ...] = (3, 128, 128), outputs: int = 2, *, levels: int = 3, width: int = 16,
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return a U-Net of 16 to 128 channels: scores of classes for every pixel.

    Scores are [batch, outputs, height, width].

    Raises:
        ShapeError: a side is not a multiple of 8.
    """
    channels, *sides = shape
    if any(side % (1 << levels) for side in sides):
        raise ShapeError(
            f"unet_small: pictures of {list(shape)}; expected sides that are multiples of "
            f"{1 << levels}"
        )
    to = UNet(seed, drawn=True)
    y = to.add_body("x", channels, levels, width)
    weights = [
        to.add_parameter(f"head.{end}", size, make_uniform(width))
        for end, size in (("weight", (outputs, width, 1, 1)), ("bias", (outputs,)))
    ]
    to.add_last("Conv", y, *weights, kernel_shape=[1, 1])
    return to.make_graph(
        "unet_small", TensorType("f32", ("batch", *shape)), ("batch", outputs, *sides)
    )
