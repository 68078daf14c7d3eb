"""The convolutions of AlexNet, VGG16 and ResNet-50, forward and both gradients, beside PyTorch with oneDNN.

Every different layer is a row, at its size for images of 224 pixels; the first layers' gradient of the
images, which training does not need, is computed by all contenders.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.cases import OURS, Case, Check, Claim, Entry, Goal, Settings
from benchmarks.harness.command import main
from benchmarks.harness.training_cases import EAGER, either

BATCH = 16
TOLERANCE = (
    1e-4  # of the largest element: sums of up to 200,704 products in float32, in another order
)
SHARE = 0.75  # of the FMA peak, from 32 channels on


@dataclass(frozen=True)
class Layer:
    """A convolution of square images.

    Attributes:
        network: whose it is.
        places: of the image, along each axis.
        channels: of the image.
        filters: how many.
        kernel: their size.
        stride: of the windows.
    """

    network: str
    places: int
    channels: int
    filters: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """As the networks have it: AlexNet's first layer 2, others so that a stride of 1 keeps the size."""
        return 2 if self.kernel == 11 else self.kernel // 2

    @property
    def flops(self) -> float:
        """Multiplications and additions for one image, forward."""
        windows = (self.places + 2 * self.padding - self.kernel) // self.stride + 1
        return 2.0 * windows**2 * self.kernel**2 * self.channels * self.filters

    def __str__(self) -> str:
        size = f"{self.kernel}x{self.kernel}{f'/{self.stride}' if self.stride > 1 else ''}"
        return f"{self.network} {self.places}x{self.places}x{self.channels} {size} {self.filters}"


LAYERS = [
    Layer("AlexNet", 224, 3, 64, 11, 4),
    Layer("AlexNet", 27, 64, 192, 5),
    Layer("AlexNet", 13, 192, 384, 3),
    Layer("AlexNet", 13, 384, 256, 3),
    Layer("AlexNet", 13, 256, 256, 3),
    Layer("VGG16", 224, 3, 64, 3),
    Layer("VGG16", 224, 64, 64, 3),
    Layer("VGG16", 112, 64, 128, 3),
    Layer("VGG16", 112, 128, 128, 3),
    Layer("VGG16", 56, 128, 256, 3),
    Layer("VGG16", 56, 256, 256, 3),
    Layer("VGG16", 28, 256, 512, 3),
    Layer("VGG16", 28, 512, 512, 3),
    Layer("VGG16", 14, 512, 512, 3),
    Layer("ResNet-50", 224, 3, 64, 7, 2),
    Layer("ResNet-50", 56, 64, 64, 1),
    Layer("ResNet-50", 56, 64, 64, 3),
    Layer("ResNet-50", 56, 64, 256, 1),
    Layer("ResNet-50", 56, 256, 64, 1),
    Layer("ResNet-50", 56, 256, 128, 1),
    Layer("ResNet-50", 56, 128, 128, 3, 2),
    Layer("ResNet-50", 28, 128, 512, 1),
    Layer("ResNet-50", 56, 256, 512, 1, 2),
    Layer("ResNet-50", 28, 512, 128, 1),
    Layer("ResNet-50", 28, 128, 128, 3),
    Layer("ResNet-50", 14, 256, 256, 3),
    Layer("ResNet-50", 14, 256, 1024, 1),
    Layer("ResNet-50", 28, 512, 1024, 1, 2),
    Layer("ResNet-50", 14, 1024, 256, 1),
    Layer("ResNet-50", 7, 512, 512, 3),
    Layer("ResNet-50", 7, 512, 2048, 1),
    Layer("ResNet-50", 7, 2048, 512, 1),
]


def case(layer: Layer, settings: Settings) -> Case:
    batch = 2 if settings.quick else BATCH
    arguments = {
        "size": (batch, layer.places, layer.places, layer.channels), "kernel": layer.kernel,
        "filters": layer.filters, "stride": layer.stride, "padding": layer.padding,
    }  # fmt: skip
    goals = [Goal("ratio", 1.0, either(settings, EAGER)[:1])]
    if layer.channels >= 32:
        goals.append(Goal("share", SHARE))
    return Case(
        str(layer),
        (
            Entry(OURS, "benchmarks.contenders.convolutions:Layer", arguments),
            Entry(EAGER, "benchmarks.contenders.torch_convolutions:Layer", arguments),
        ),
        tuple(goals),
        checks=(Check(TOLERANCE),),
        flops=3 * batch * layer.flops,
        dtype="float32",
    )


def claim(settings: Settings) -> Claim:
    layers = LAYERS[1:5:3] if settings.quick else LAYERS
    return Claim(
        "convolutions, forward and both gradients",
        [case(layer, settings) for layer in layers],
        shared=True,
    )


if __name__ == "__main__":
    main({"convolutions": claim})
