"""The networks that there are."""

from __future__ import annotations

from magmadnn.errors import UnknownNameError

from .network import Network
from .perceptron import MLP
from .zoo import ZOO

NETWORKS: dict[str, Network] = {network.name: network for network in (MLP, *ZOO)}


def by_name(name: str) -> Network:
    """The network called `name`.

    Raises:
        UnknownNameError: if there is none of that name.
    """
    if name not in NETWORKS:
        raise UnknownNameError.of("model", name, NETWORKS)
    return NETWORKS[name]
