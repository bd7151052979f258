"""Runs several verbs in one process, because starting one costs more than the verbs: python -m tests.several JSON

JSON is a list of commands, each a verb and its flags. A line `exit N` is printed after each command. The exit code is
that of the last command.
"""

import functools
import importlib
import json
import sys

from vit_jax import cli


def main(commands: list[list[str]]) -> int:
  """Runs the commands in sequence, and returns the exit code of the last one."""
  code = 0
  for verb, *words in commands:
    main = importlib.import_module(f"vit_jax.{verb}").main
    try:
      cli.run_verb(functools.partial(main, words))
      code = 0
    except SystemExit as end:
      code = end.code or 0
    print(f"exit {code}", flush=True)
  return code


if __name__ == "__main__":
  sys.stderr = sys.stdout
  sys.exit(main(json.loads(sys.argv[1])))
