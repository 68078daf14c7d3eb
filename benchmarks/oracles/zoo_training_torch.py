"""Loss curves of 100 steps of convolutional networks in PyTorch, for tests/models/test_zoo_training.py.

Run it in an environment with PyTorch (2.13.0, CPU build, was used):

    python benchmarks/oracles/zoo_training_torch.py

Weights, images and classes are formulas of name and place, so that a test makes the same. Each network is
trained in float64 and in float32: how far the second curve is from the first says how much rounding in
float32 means at each step. There is no dropout. Names of networks as arguments train these only, and leave
the other curves as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.oracles.torchvision_networks import (  # noqa: E402
    Block,
    DenseNet,
    GoogLeNet,
    ResNet,
    alexnet,
    conv,
    vgg16,
)
from tests.models.formula_weights import classes, images, weight  # noqa: E402

GOAL = ROOT / "tests" / "models" / "data" / "zoo_training.npz"
ROWS, BATCH, STEPS = 40, 8, 100


class LeNet5(nn.Module):
    def __init__(self, size: int = 28) -> None:
        super().__init__()
        assert size == 28
        self.conv1, self.conv2 = conv(1, 6, 5, p=2, bias=True), conv(6, 16, 5, bias=True)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Any) -> Any:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class CifarCNN(nn.Module):
    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(3, 32, 3, p=1, bias=True), conv(32, 32, 3, p=1, bias=True)
        self.conv3, self.conv4 = conv(32, 64, 3, p=1, bias=True), conv(64, 64, 3, p=1, bias=True)
        self.fc1, self.fc2 = nn.Linear((size // 4) ** 2 * 64, 256), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        x = torch.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(x)))), 2)
        x = torch.max_pool2d(torch.relu(self.conv4(torch.relu(self.conv3(x)))), 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class CifarResNet(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, 16, 3, 1, 1), nn.BatchNorm2d(16)
        i = 16
        for stage, width in enumerate((16, 32, 64), 1):
            made = []
            for k in range(blocks):
                made.append(Block(i, width, 2 if stage > 1 and k == 0 else 1, False))
                i = width
            setattr(self, f"layer{stage}", nn.Sequential(*made))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def alexnet_of_63(classes: int) -> nn.Module:
    """For images of 63 x 63, whose features are 1 x 1."""
    made = alexnet(classes)
    made.classifier[1] = nn.Linear(256, 4096)
    return made


def vgg16_of_32(classes: int) -> nn.Module:
    """For images of 32 x 32, whose features are 1 x 1."""
    made = vgg16(classes)
    made.classifier[0] = nn.Linear(512, 4096)
    return made


# how a network is made; size and channels of images, learning rate
CASES: dict[str, tuple[Any, int, int, float]] = {
    "lenet5": (LeNet5, 28, 1, 0.02),
    "cifar_cnn": (CifarCNN, 16, 3, 0.01),
    "resnet20": (lambda: CifarResNet(3), 8, 3, 0.02),
    "resnet56": (lambda: CifarResNet(9), 8, 3, 0.005),
    "alexnet": (lambda: alexnet_of_63(10), 63, 3, 0.003),
    "vgg16": (lambda: vgg16_of_32(10), 32, 3, 0.01),
    "googlenet": (lambda: GoogLeNet(10), 65, 3, 0.002),
    "resnet18": (lambda: ResNet([2, 2, 2, 2], False, 10), 33, 3, 0.005),
    "resnet34": (lambda: ResNet([3, 4, 6, 3], False, 10), 33, 3, 0.005),
    "resnet50": (lambda: ResNet([3, 4, 6, 3], True, 10), 33, 3, 2e-4),
    "densenet121": (lambda: DenseNet(10), 33, 3, 5e-4),
}


def with_formula_weights(model: nn.Module) -> nn.Module:
    """The model with the weights that a test makes too, and without dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                tensor.copy_(torch.from_numpy(weight(key, tuple(tensor.shape))))
    return model


def losses_of(model: nn.Module, size: int, channels: int, rate: float) -> list[Any]:
    """The loss before each step of SGD with momentum 0.9, of batches where and as the model's weights are."""
    some = next(model.parameters())
    x = torch.from_numpy(images(ROWS, size, channels).transpose(0, 3, 1, 2).copy())
    x, y = x.to(some.device, some.dtype), torch.from_numpy(classes(ROWS, 10)).to(some.device)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH % ROWS, step * BATCH % ROWS + BATCH)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses


def curve(name: str, dtype: torch.dtype) -> np.ndarray:
    """The losses of a network."""
    make, size, channels, rate = CASES[name]
    model = with_formula_weights(make()).to(dtype).train()
    return np.array([loss.item() for loss in losses_of(model, size, channels, rate)])


def main(*names: str) -> None:
    kept: dict[str, Any] = {}
    if names and GOAL.exists():
        kept = {k: v for k, v in np.load(GOAL).items() if k != "torch_version"}
    for name in names or CASES:
        exact, rounded = curve(name, torch.float64), curve(name, torch.float32)
        kept |= {f"{name}/float64": exact, f"{name}/float32": rounded}
        print(name, exact[[0, 9, 49, 99]], "off by", np.abs(exact - rounded)[[0, 9, 49, 99]])
    np.savez_compressed(GOAL, torch_version=torch.__version__, **kept)
    print(f"wrote {GOAL} ({GOAL.stat().st_size} bytes)")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(*sys.argv[1:])
