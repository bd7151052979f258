"""Runs parity fixtures, numbers computed by the original programs: python -m tests.parity [DIR]

DIR contains any of models/, posemb/, fewshot/, schedules/, optimizers/, augment/ and selfsup/, or is one of these
folders. The default is the folder of fixtures next to this file.
The command prints one line for each fixture: its name, the largest relative error, and pass or fail. The relative error
is the largest difference divided by the largest expected value. The result depends on the fixture's own absolute
tolerance. The last line is `N passed, M failed`. The exit code is 1 if a fixture failed.
"""

import argparse
import pathlib
import sys
import time

from tests.parity import FOLDER, KINDS, check, fixtures


def main() -> int:
  """Prints the table. Returns 1 if a fixture failed, and 2 if no fixture was found."""
  parser = argparse.ArgumentParser("python -m tests.parity", description=__doc__)
  parser.add_argument("folder", nargs="?", type=pathlib.Path, default=FOLDER, help="of fixtures")
  folder = parser.parse_args().folder
  files = fixtures(folder) if folder.is_dir() else []
  if not files:
    print(f"no fixtures in {folder}: it holds none of {', '.join(KINDS)}", file=sys.stderr)
    return 2
  start_time, passed, failed = time.perf_counter(), 0, 0
  print(f"{'fixture':<72} largest relative error")
  for kind, file in files:
    for result in check(kind, file):
      passed, failed = passed + (not result.wrong), failed + bool(result.wrong)
      verdict = "pass" if not result.wrong else f"FAIL  {result.wrong}"
      print(f"{kind + '/' + result.name:<72} {result.error:9.2e}  {verdict}", flush=True)
  print(f"took {time.perf_counter() - start_time:.0f} s")
  print(f"{passed} passed, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
