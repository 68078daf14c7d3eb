"""From a Program to a Plan: named passes, then steps over slots.

The compiler knows kinds of op and sizes, and names no op.
"""

from .pipeline import compile_program as compile_program
from .plan import Plan as Plan

__all__ = ["Plan", "compile_program"]
