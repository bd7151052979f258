"""Whether `launch` keeps what it promises, for long: python -m tests.campaigns.launch [EXAMPLES]

The tests of launch with so many examples of each property, which are drawn anew: sequences of faults of both clouds,
hostile words, files that anybody has changed. And the whole path by the real gcloud, where it is installed: a run of
four JAX processes on a cloud on loopback, preempted, to the undisturbed result. About half an hour for 300 examples.
Ends with pytest's line; exit code 1 if anything failed.
"""

import argparse
import os
import shutil
import subprocess
import sys


def main() -> int:
  """Runs the tests; the exit code."""
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
