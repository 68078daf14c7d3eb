"""`python -m magmadnn.workers` is a worker; `Workers` starts it."""

from __future__ import annotations

from magmadnn.workers.serving import serve

serve()
