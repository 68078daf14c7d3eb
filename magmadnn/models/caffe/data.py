"""Layers that give data. What they read and how they change it is left to `fit`; here are their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.errors import ArgumentError, DataError, quoted

from .description import Described, Source
from .fields import Fields

DATA = ("Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData", "WindowData")


@dataclass(frozen=True)
class Unused(Source):
    """Data that no layer has taken so far: an input of the model, or labels.

    Attributes:
        crop: size that images are cut to; None where the file does not say.
    """

    crop: int | None = None

    def where(self, file: str) -> str:
        """How an error about it begins."""
        return f"{file}, line {self.line}: input {quoted(self.name)}"

    def sample_shape(self, file: str) -> tuple[int, ...]:
        """The shape of a sample, channels last.

        Raises:
            ArgumentError: the file has none.
            DataError: it is none of images or features.
        """
        if not self.sizes:
            crop = self.crop
            example = f"({crop}, {crop}, channels)" if crop else "(height, width, channels)"
            raise ArgumentError(
                f"{self.where(file)}: the file does not say its shape: give input_shape={example}, or "
                "(features,)"
            )
        if len(self.sizes) not in (2, 4) or not all(self.sizes[1:]):
            raise DataError(
                f"{self.where(file)}: expected the shape (batch, channels, height, width) or "
                f"(batch, features) with sizes of at least 1, got ({', '.join(map(str, self.sizes))})"
            )
        channels, *places = self.sizes[1:]
        return (*places, channels)


def declared(layer: Described) -> list[Unused]:
    """What each top of a layer with data is.

    Raises:
        DataError: it has bottoms, or shapes of another number.
    """
    if layer.bottoms:
        raise DataError(f"{layer.where}: expected no bottom, got {', '.join(layer.bottoms)}")
    shapes, crop = _shapes_of(layer)
    if len(shapes) not in (0, 1, len(layer.tops)):
        raise DataError(
            f"{layer.where}: expected a shape for each top, or one for all, got {len(shapes)} for "
            f"{len(layer.tops)}"
        )
    each = shapes if len(shapes) == len(layer.tops) else (shapes or [()]) * len(layer.tops)
    return [
        Unused(name, sizes, layer.line, crop) for name, sizes in zip(layer.tops, each, strict=True)
    ]


def _shapes_of(layer: Described) -> tuple[list[tuple[int, ...]], int | None]:
    """Shapes that a layer declares, batch first, and the size that images are cut to."""
    fields = layer.fields
    if layer.type == "Input":
        shapes = _shapes(fields.part("input_param"))
        fields.check_all_read()
        return shapes, None
    if layer.type == "DummyData":
        return _shapes(fields.part("dummy_data_param")), None
    if layer.type == "MemoryData":
        memory = fields.part("memory_data_param")
        sizes = [memory.needed(name) for name in ("batch_size", "channels", "height", "width")]
        return [tuple(sizes)], None
    return [], fields.part("transform_param").whole("crop_size", 0) or None


def _shapes(options: Fields) -> list[tuple[int, ...]]:
    return [tuple(part.wholes("dim")) for part in options.parts("shape")]
