"""Networks by name: functions that make a Model, and presets: what `magmadnn train MODEL` can train."""

from .network import Network as Network
from .network import Preset as Preset
from .perceptron import MLP as MLP
from .perceptron import mlp as mlp
from .registry import NETWORKS as NETWORKS
from .registry import by_name as by_name

__all__ = ["MLP", "NETWORKS", "Network", "Preset", "by_name", "mlp"]
