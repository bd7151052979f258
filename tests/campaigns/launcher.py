"""Tests the launcher with long random sequences of faults: python -m tests.campaigns.launcher [STEPS] [--seed S]

The campaign runs the state machine of tests/launch/test_properties.py with random sequences, for at least STEPS steps.
The cloud loses, delays, duplicates and falsifies responses. Clocks jump and processes die. Two laptops and gc act at
the same time. The campaign prints its seed, which is random by default.

20,000 steps take a few minutes. The campaign prints the number of steps. The exit code is 1 if an invariant failed.
"""

import argparse
import collections
import random
import sys
import time

import hypothesis
from hypothesis import stateful

from tests.launch.test_properties import Launcher

LENGTH, SEQUENCES = 50, 50  # steps of a sequence; sequences between two lines of progress


class Counted(Launcher):
  """The state machine with counts of its steps and of the actions of the launcher."""

  steps, seen = 0, collections.Counter()

  def check_invariants(self, settings: hypothesis.settings, *args: object, **kwargs: object) -> None:
    """Counts a step. Hypothesis calls this method after each step."""
    Counted.steps += 1
    super().check_invariants(settings, *args, **kwargs)

  def teardown(self) -> None:
    """Counts the events of a sequence."""
    Counted.seen["attempts"] += len(self.universe.answered)
    Counted.seen["ends"] += self.universe.output.count("vit: ")
    Counted.seen["removals by gc"] += self.universe.output.count("is being deleted")
    Counted.seen["watchers that lost the lease"] += self.universe.output.count(" now; this one ends")
    super().teardown()


def main() -> int:
  """Runs the sequences and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.launcher", description=__doc__)
  parser.add_argument("steps", nargs="?", type=int, default=20_000, metavar="STEPS")
  parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the sequences")
  args = parser.parse_args()
  print(f"seed {args.seed}", flush=True)
  start = time.monotonic()
  while Counted.steps < args.steps:
    hypothesis.seed(f"{args.seed}/{Counted.steps}")(Counted)
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
