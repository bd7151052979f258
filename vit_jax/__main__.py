"""Lists the verbs: python -m vit_jax"""

import ast
import pathlib
import shlex
import sys

from vit_jax.schema import suggest_nearest

VERBS = ("train", "evaluate", "predict", "fewshot", "sweep", "plan", "prepare", "convert", "report")


def main(words: list[str]) -> int:
  """Prints the list of verbs. If a verb was written without a dot, prints the correct command.

  Args:
    words: arguments of the command line, without the name of the program.

  Returns:
    The exit code: 0 for the list, 2 for a user error.
  """
  verb, *rest = words or ["--help"]
  if verb in ("-h", "--help", "help"):
    print("Vision Transformers in JAX. Each verb is a module. Use --help to list its flags:\n")
    for name in VERBS:
      print(f"  python -m vit_jax.{name:<10}{summarise_verb(name)}")
    print("\nIn Python: import vit_jax; vit_jax.load('runs/a').predict('photo.jpg')")
    return 0
  if verb in VERBS:
    command = shlex.join([f"vit_jax.{verb}", *(rest or ["--help"])])
    print(f"error: verbs are written with a dot. Run: python -m {command}", file=sys.stderr)
  else:
    print(f"error: unknown verb {verb!a}.{suggest_nearest(verb, VERBS)}", file=sys.stderr)
  return 2


def summarise_verb(verb: str) -> str:
  """Returns the first line of a verb's module docstring, without the command.

  The file is parsed and not imported, because imports take seconds.
  """
  source = pathlib.Path(__file__).with_name(f"{verb}.py").read_text()
  return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].partition(": python -m")[0].rstrip(".")


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
