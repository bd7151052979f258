"""Long sequences of faults for the launcher: python -m tests.campaigns.launcher [STEPS]

The state machine of tests/launch/test_properties.py with new random sequences, until at least so many steps are done.
The cloud loses, delays, duplicates and falsifies answers, clocks jump, processes die, two laptops and gc act at once.
20,000 steps take a few minutes. Ends with the number of steps; exit code 1 if a promise was broken.
"""

import argparse
import collections
import sys
import time

import hypothesis
from hypothesis import stateful

from tests.launch.test_properties import Launcher

LENGTH, SEQUENCES = 50, 50  # steps of a sequence; sequences between two lines of progress


class Counted(Launcher):
  """The state machine, which counts its steps and what the launcher did in them."""

  steps, seen = 0, collections.Counter()

  def check_invariants(self, settings: hypothesis.settings, *args: object, **kwargs: object) -> None:
    """Called by hypothesis after each step."""
    Counted.steps += 1
    super().check_invariants(settings, *args, **kwargs)

  def teardown(self) -> None:
    """Counts what happened in a sequence."""
    Counted.seen["attempts"] += len(self.universe.answered)
    Counted.seen["ends"] += self.universe.said.count("vit: ")
    Counted.seen["removals by gc"] += self.universe.said.count("is being deleted")
    Counted.seen["watchers that lost the lease"] += self.universe.said.count(" now; this one ends")
    super().teardown()


def main() -> int:
  """Runs the sequences; the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.launcher", description=__doc__)
  parser.add_argument("steps", nargs="?", type=int, default=20_000, metavar="STEPS")
  args = parser.parse_args()
  start = time.monotonic()
  while Counted.steps < args.steps:
    settings = hypothesis.settings(
      max_examples=SEQUENCES, stateful_step_count=LENGTH, deadline=None, database=None, derandomize=False,
      suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    stateful.run_state_machine_as_test(Counted, settings=settings)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(Counted.seen.items()))
    print(f"{Counted.steps} steps in {time.monotonic() - start:.0f} s: {counts}", flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
