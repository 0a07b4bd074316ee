"""How many examples the properties get, and the grid that makes ties likely."""

import os

from hypothesis import settings
from hypothesis import strategies as st

# `.ci/run` has a stage of its own that runs the properties of the three shells with 2,000 examples.
NUM_EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))

core_examples = settings(max_examples=NUM_EXAMPLES)
order_examples = settings(max_examples=min(NUM_EXAMPLES, 500))  # of pure policies

ticks = st.integers(0, 12).map(lambda tick: tick / 4)  # few distinct times: ties on purpose
moments = st.tuples(ticks, st.integers(0, 4))  # a time, and how many loop turns after it
