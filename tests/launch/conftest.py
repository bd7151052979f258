"""Examples are drawn anew each time, few of them, and on a loaded machine each may take its time."""

import hypothesis

hypothesis.settings.register_profile("launch", deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("launch")
