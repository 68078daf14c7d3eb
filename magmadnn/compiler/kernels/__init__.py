"""Descriptions of kernels: what is computed, on what, and nothing of how; `emit` turns them into code."""
