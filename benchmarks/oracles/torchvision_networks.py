"""Names, shapes and predictions of PyTorch networks built as torchvision builds them, for tests/models.

Run it in an environment with PyTorch: `python benchmarks/oracles/torchvision_networks.py`. torchvision itself
is not needed: the modules below have its names and order. Weights are a formula of name and place, so that a
test can make the same state dict.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.models.formula_weights import image, weight  # noqa: E402

GOAL = ROOT / "tests" / "models" / "data" / "torchvision_networks.json"


def conv(i: int, o: int, k: int, s: int = 1, p: int = 0, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, s, p, bias=bias)


class Block(nn.Module):
    def __init__(self, i: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        o = width * (4 if bottleneck else 1)
        self.bottleneck = bottleneck
        if bottleneck:
            self.conv1, self.bn1 = conv(i, width, 1), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride, 1), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = conv(width, o, 1), nn.BatchNorm2d(o)
        else:
            self.conv1, self.bn1 = conv(i, width, 3, stride, 1), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.bottleneck:
            y = self.bn3(self.conv3(torch.relu(y)))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, blocks: list[int], bottleneck: bool, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2, 3), nn.BatchNorm2d(64)
        i = 64
        for stage, count in enumerate(blocks):
            parts = []
            for k in range(count):
                width = 64 << stage
                parts.append(Block(i, width, 2 if stage and not k else 1, bottleneck))
                i = width * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*parts))
        self.fc = nn.Linear(i, classes)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


class Unit(nn.Module):
    def __init__(self, i: int, o: int, k: int, s: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = conv(i, o, k, s, k // 2), nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    def __init__(self, i: int, a: int, b: int, c: int, d: int, e: int, f: int) -> None:
        super().__init__()
        self.branch1 = Unit(i, a, 1)
        self.branch2 = nn.Sequential(Unit(i, b, 1), Unit(b, c, 3))
        self.branch3 = nn.Sequential(Unit(i, d, 1), Unit(d, e, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), Unit(i, f, 1))

    def forward(self, x: Any) -> Any:
        return torch.cat(
            [b(x) for b in (self.branch1, self.branch2, self.branch3, self.branch4)], 1
        )


class GoogLeNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = Unit(3, 64, 7, 2), Unit(64, 64, 1), Unit(64, 192, 3)
        self.inception3a = Inception(192, 64, 96, 128, 16, 32, 32)
        self.inception3b = Inception(256, 128, 128, 192, 32, 96, 64)
        self.inception4a = Inception(480, 192, 96, 208, 16, 48, 64)
        self.inception4b = Inception(512, 160, 112, 224, 24, 64, 64)
        self.inception4c = Inception(512, 128, 128, 256, 24, 64, 64)
        self.inception4d = Inception(512, 112, 144, 288, 32, 64, 64)
        self.inception4e = Inception(528, 256, 160, 320, 32, 128, 128)
        self.inception5a = Inception(832, 256, 160, 320, 32, 128, 128)
        self.inception5b = Inception(832, 384, 192, 384, 48, 128, 128)
        self.fc = nn.Linear(1024, classes)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(self.conv1(x), 3, 2, ceil_mode=True)
        x = nn.functional.max_pool2d(self.conv3(self.conv2(x)), 3, 2, ceil_mode=True)
        x = self.inception3b(self.inception3a(x))
        x = self.inception4a(nn.functional.max_pool2d(x, 3, 2, ceil_mode=True))
        x = self.inception4e(self.inception4d(self.inception4c(self.inception4b(x))))
        x = nn.functional.max_pool2d(x, 2, 2, ceil_mode=True)
        return self.fc(self.inception5b(self.inception5a(x)).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(i), conv(i, 128, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), conv(128, 32, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        y = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(y)))], 1)


class DenseNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        parts: list[tuple[str, nn.Module]] = [
            ("conv0", conv(3, 64, 7, 2, 3)), ("norm0", nn.BatchNorm2d(64)), ("relu0", nn.ReLU()),
            ("pool0", nn.MaxPool2d(3, 2, 1)),
        ]  # fmt: skip
        i = 64
        for block, count in enumerate((6, 12, 24, 16), 1):
            layers = [(f"denselayer{k + 1}", DenseLayer(i + 32 * k)) for k in range(count)]
            parts.append((f"denseblock{block}", nn.Sequential(OrderedDict(layers))))
            i += 32 * count
            if block < 4:
                inner: list[tuple[str, nn.Module]] = [
                    ("norm", nn.BatchNorm2d(i)), ("relu", nn.ReLU()), ("conv", conv(i, i // 2, 1)),
                    ("pool", nn.AvgPool2d(2, 2)),
                ]  # fmt: skip
                parts.append((f"transition{block}", nn.Sequential(OrderedDict(inner))))
                i //= 2
        parts.append(("norm5", nn.BatchNorm2d(i)))
        self.features = nn.Sequential(OrderedDict(parts))
        self.classifier = nn.Linear(i, classes)

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.relu(self.features(x)).mean((2, 3)))


class Plain(nn.Module):
    def __init__(self, features: list[nn.Module], classifier: list[nn.Module]) -> None:
        super().__init__()
        self.features, self.classifier = nn.Sequential(*features), nn.Sequential(*classifier)

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.features(x), 1))


def alexnet(classes: int) -> Plain:
    """For images of 127 x 127, whose features are 3 x 3."""
    relu, pool, drop = nn.ReLU, lambda: nn.MaxPool2d(3, 2), nn.Dropout
    return Plain(
        [conv(3, 64, 11, 4, 2, True), relu(), pool(), conv(64, 192, 5, 1, 2, True), relu(), pool(),
         conv(192, 384, 3, 1, 1, True), relu(), conv(384, 256, 3, 1, 1, True), relu(),
         conv(256, 256, 3, 1, 1, True), relu(), pool()],
        [drop(), nn.Linear(256 * 9, 4096), relu(), drop(), nn.Linear(4096, 4096), relu(),
         nn.Linear(4096, classes)],
    )  # fmt: skip


def vgg16(classes: int) -> Plain:
    """For images of 64 x 64, whose features are 2 x 2."""
    features: list[nn.Module] = []
    i = 3
    for o in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        features += [conv(i, o, 3, 1, 1, True), nn.ReLU()] if o else [nn.MaxPool2d(2)]
        i = o or i
    relu, drop = nn.ReLU, nn.Dropout
    return Plain(
        features,
        [
            nn.Linear(2048, 4096),
            relu(),
            drop(),
            nn.Linear(4096, 4096),
            relu(),
            drop(),
            nn.Linear(4096, classes),
        ],
    )


NETWORKS = {
    "alexnet": (lambda: alexnet(7), 127),
    "vgg16": (lambda: vgg16(7), 64),
    "resnet18": (lambda: ResNet([2, 2, 2, 2], False, 7), 65),
    "resnet34": (lambda: ResNet([3, 4, 6, 3], False, 7), 65),
    "resnet50": (lambda: ResNet([3, 4, 6, 3], True, 7), 65),
    "googlenet": (lambda: GoogLeNet(7), 65),
    "densenet121": (lambda: DenseNet(7), 65),
}


def main() -> None:
    found = {}
    for name, (make, size) in NETWORKS.items():
        net = make().eval()
        shapes = {k: list(v.shape) for k, v in net.state_dict().items() if v.ndim}
        state = {k: torch.from_numpy(weight(k, tuple(s))) for k, s in shapes.items()}
        net.load_state_dict(state, strict=False)
        with torch.no_grad():
            y = net(torch.from_numpy(image(size)).permute(0, 3, 1, 2))
        print(name, y.tolist(), sum(p.numel() for p in net.parameters()))
        found[name] = {"size": size, "shapes": shapes, "predictions": y.tolist()}
    GOAL.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
