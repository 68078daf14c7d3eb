"""The compute graph: what an op is, nodes, symbolic dimensions, gradients, and how a graph is shown."""

from magmadnn.graph.drawing.diagram import Diagram as Diagram
from magmadnn.graph.drawing.diagram import to_svg as to_svg

from . import scalar as scalar
from .computed_by import LibraryCall as LibraryCall
from .computed_by import OwnKernel as OwnKernel
from .dim import Dim as Dim
from .node import Node as Node
from .node import scope as scope
from .op import REQUIRED as REQUIRED
from .op import NoGradient as NoGradient
from .op import Op as Op
from .op import OpKind as OpKind
from .op import Sample as Sample
from .op import promote as promote
from .signature import by_signature as by_signature
from .spec import Spec as Spec
from .text import show as show

__all__ = [
    "REQUIRED",
    "Diagram",
    "Dim",
    "LibraryCall",
    "NoGradient",
    "Node",
    "Op",
    "OpKind",
    "OwnKernel",
    "Sample",
    "Spec",
    "by_signature",
    "promote",
    "scalar",
    "scope",
    "show",
    "to_svg",
]
