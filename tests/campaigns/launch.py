"""Tests the properties of `launch` with many examples: python -m tests.campaigns.launch [EXAMPLES]

The campaign runs the tests of launch with EXAMPLES new random examples of each property. The examples are sequences of
faults of both clouds, hostile texts, and changed files. If gcloud is installed, the campaign also tests the whole path
with the real program. A run of four JAX processes on a local cloud is preempted. It must reach the undisturbed result.

300 examples take about half an hour. The campaign ends with pytest's summary. The exit code is 1 if a test failed.
"""

import argparse
import os
import shutil
import subprocess
import sys


def main() -> int:
  """Runs the tests and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.launch", description=__doc__)
  parser.add_argument("examples", nargs="?", type=int, default=300, metavar="EXAMPLES")
  args = parser.parse_args()
  environment = os.environ | {"VITJAX_EXAMPLES": str(args.examples)}
  if shutil.which("gcloud"):
    environment["VITJAX_REAL_GCLOUD"] = "1"
  words = [sys.executable, "-m", "pytest", "-n", "2", "--dist=worksteal", "-q", "tests/launch"]
  return subprocess.run(words, env=environment).returncode


if __name__ == "__main__":
  sys.exit(main())
