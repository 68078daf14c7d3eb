"""The networks that there are."""

from __future__ import annotations

from magmadnn.errors import UnknownNameError

from .caffe.trained import described_network, is_description
from .network import Network
from .perceptron import MLP
from .zoo import ZOO

NETWORKS: dict[str, Network] = {network.name: network for network in (MLP, *ZOO)}


def by_name(name: str) -> Network:
    """The network called `name`, or the one that the file `name`, a .prototxt, describes.

    Raises:
        UnknownNameError: if there is none of that name.
        FileError, DataError: if the file cannot be read, or describes no network.
    """
    if is_description(name):
        return described_network(name)
    if name not in NETWORKS:
        raise UnknownNameError.of("model", name, NETWORKS)
    return NETWORKS[name]
