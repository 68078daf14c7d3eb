"""Where the elements of a value lie when several ranks share it."""

from .axes import Axes as Axes
from .axes import axes_of as axes_of
from .placement import On as On
from .placement import Partial as Partial
from .placement import Placement as Placement
from .placement import Replicate as Replicate
from .placement import Shard as Shard
from .placement import local_shape as local_shape
from .placement import ranks_on as ranks_on
from .routes import Routes as Routes
from .routes import routed as routed

__all__ = [
    "Axes",
    "On",
    "Partial",
    "Placement",
    "Replicate",
    "Routes",
    "Shard",
    "axes_of",
    "local_shape",
    "ranks_on",
    "routed",
]
