"""How many examples the core properties get, and the grid that makes ties likely."""

import os

from hypothesis import settings
from hypothesis import strategies as st

core_examples = settings(max_examples=2_000 if os.environ.get("CI") else 150)

ticks = st.integers(0, 12).map(lambda tick: tick / 4)  # few distinct times: ties on purpose
moments = st.tuples(ticks, st.integers(0, 4))  # a time, and how many loop turns after it
order_examples = settings(max_examples=500 if os.environ.get("CI") else 150)  # of pure policies
