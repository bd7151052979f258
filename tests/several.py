"""Several verbs in one process, where starting it costs more than what they do: python -m tests.several JSON

JSON is a list of commands, each a verb and its flags. After each a line `exit N` is printed; the exit code is the last
one's.
"""

import functools
import importlib
import json
import sys

from vit_jax import cli


def main(commands: list[list[str]]) -> int:
  """Runs the commands in turn; the exit code of the last."""
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
