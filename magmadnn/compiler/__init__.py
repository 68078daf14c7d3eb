"""From a Program to a Plan: named passes, then steps over slots.

The compiler knows kinds of op and sizes, and names no op.
"""

from .program.call_plan import Plan as Plan
from .program.pipeline import compile_program as compile_program

__all__ = ["Plan", "compile_program"]
