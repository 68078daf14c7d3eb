"""Where the elements of a value lie when several ranks share it."""

from .axes import Axes as Axes
from .axes import axes_of as axes_of
from .placement import Partial as Partial
from .placement import Placement as Placement
from .placement import Replicate as Replicate
from .placement import Shard as Shard
from .placement import local_shape as local_shape

__all__ = ["Axes", "Partial", "Placement", "Replicate", "Shard", "axes_of", "local_shape"]
