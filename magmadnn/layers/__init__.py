"""Layers."""

from .dense import Dense as Dense
from .inputs import Input as Input
from .layer import Layer as Layer
