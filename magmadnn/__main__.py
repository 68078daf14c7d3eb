"""`python -m magmadnn` is `magmadnn`."""

from __future__ import annotations

import sys

from magmadnn.cli import main

sys.exit(main())
