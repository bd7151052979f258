"""Lists the verbs, or runs one of them: python -m vit_jax"""

import ast
import os
import pathlib
import sys

from vit_jax.schema import extras, suggest_nearest

VERBS = ("train", "evaluate", "predict", "fewshot", "sweep", "plan", "prepare", "convert", "report")


def main(words: list[str] | None = None) -> int:
  """Prints the list of verbs, or replaces this process by the program of a verb.

  The interpreter stays the same, and the process keeps its number.

  Args:
    words: arguments of the command line, without the name of the program. The default is the arguments of this process.

  Returns:
    The exit code: 0 for the list, 2 for an unknown verb.
  """
  verb, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
  if verb in VERBS:
    os.execv(sys.executable, [sys.executable, "-m", f"vit_jax.{verb}", *rest])
  if verb in ("-h", "--help", "help"):
    print("Vision Transformers in JAX. Each verb is a module. Use --help to list its flags:\n")
    for name in VERBS:
      print(f"  python -m vit_jax.{name:<10}{summarise_verb(name)}")
    print("\nThe program vit-jax runs the same modules: vit-jax train is python -m vit_jax.train")
    print("In Python: import vit_jax; vit_jax.load('runs/a').predict('photo.jpg')")
    return 0
  if verb == "--version":
    print(extras.VERSION)
    return 0
  print(f"error: unknown verb {verb!a}.{suggest_nearest(verb, VERBS)}", file=sys.stderr)
  return 2


def summarise_verb(verb: str) -> str:
  """Returns the first line of a verb's module docstring, without the command.

  The file is parsed and not imported, because imports take seconds.
  """
  source = pathlib.Path(__file__).with_name(f"{verb}.py").read_text()
  return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].partition(": python -m")[0].rstrip(".")


if __name__ == "__main__":
  sys.exit(main())
