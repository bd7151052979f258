"""Long sequences of faults for the launcher: python -m tests.campaigns.launcher [STEPS]

The state machine of tests/launch/test_properties.py with new random sequences, of at least so many steps in all. The
cloud loses, delays, duplicates and falsifies answers, clocks jump, processes die, and two laptops and gc act at once.
20,000 steps take about ten minutes. Ends with the number of steps; exit code 1 if a promise was broken.
"""

import argparse
import math
import os
import subprocess
import sys

LENGTH = 50  # steps of a sequence


def main() -> int:
  """Runs the sequences; the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.launcher", description=__doc__)
  parser.add_argument("steps", nargs="?", type=int, default=20_000, metavar="STEPS")
  args = parser.parse_args()
  sequences = math.ceil(args.steps / LENGTH)
  environment = os.environ | {"VITJAX_SEQUENCES": str(sequences), "VITJAX_STEPS": str(LENGTH)}
  words = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/launch/test_properties.py"]
  code = subprocess.run(words, env=environment).returncode
  print(f"{sequences} sequences of up to {LENGTH} steps", flush=True)
  return code


if __name__ == "__main__":
  sys.exit(main())
