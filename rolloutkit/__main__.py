"""`python -m rolloutkit` is the command `rolloutkit`."""

from __future__ import annotations

import sys

from rolloutkit.cli import main

sys.exit(main())
