"""Extracts the commands that the documentation shows: from Markdown pages, docstrings and the Makefile."""

import ast
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [
  file
  for folder in ("configs", "benchmarks", "examples", "tests/campaigns", "tests/parity", "vit_jax", "launch")
  for file in sorted((ROOT / folder).rglob("*.py"))
]
# A command starts with one of these words. Commands in prose outside of backticks start with one of the second list.
PROGRAMS = (
  "python",
  "pip",
  "vit-jax",
  "vit-launch",
  "make",
  "tensorboard",
  "gcloud",
  "find",
  "nvidia-smi",
  "ssh",
  "kill",
  "mlflow",
  "trackio",
  "pre-commit",
  "docker",
  "model_signing",
)
IN_PROSE = r"(?:python -m [\w.]+|python examples/|pip install |make (?:digits|transfer|compare|bench|test|check)\b)"


class Command(NamedTuple):
  """A command as the documentation has it, in one line, and where it is."""

  text: str
  place: str


def commands() -> list[Command]:
  """Returns all commands, those of a page or file in its order."""
  found = [Command(text, name_of(page)) for page in PAGES for text in of_markdown(page.read_text())]
  for file in SOURCES:
    for docstring in docstrings(file.read_text()):
      found += [Command(text, str(file.relative_to(ROOT))) for text in of_docstring(docstring)]
  return found + [Command(text, "Makefile") for text in of_makefile((ROOT / "Makefile").read_text())]


def name_of(page: pathlib.Path) -> str:
  """Returns the path of a page in the folder of the documentation, such as "extend/task.md", or "README.md"."""
  return page.name if page.parent == ROOT else page.relative_to(ROOT / "docs").as_posix()


def of_markdown(text: str) -> list[str]:
  """Returns the commands in code blocks, fenced or indented, and in inline code, which also stands in tables."""
  blocks, prose = split(text)
  found = [command for block in blocks for command in of_block(block)]
  for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose):
    if " " in span:  # more than the name of a program
      found += of_block(re.sub(r"\s+", " ", span))
  return found


def split(text: str) -> tuple[list[str], str]:
  """Separates a page into its code blocks and everything else."""
  blocks, prose, block, fenced, blank = [], [], [], False, True
  for line in text.splitlines():
    if line.startswith("```"):
      fenced = not fenced
      if not fenced:
        blocks.append("\n".join(block))
        block = []
    elif fenced or (line.startswith("    ") and (block or blank)):
      block.append(line if fenced else line[4:])
    else:
      if block:
        blocks.append("\n".join(block))
        block = []
      prose.append(line)
    blank = not line.strip()
  return [*blocks, *(["\n".join(block)] if block else [])], "\n".join(prose)


def of_block(block: str) -> list[str]:
  """Returns the commands of a block of code: lines that start with a program, with their continuation lines.

  An array of the shell, `run=(...)`, is put in the place of its uses.
  """
  found, quoted, arrays = [], "", {}
  for line in joined(block.replace("\n$ ", "\n")).splitlines():
    line = f"{quoted} {line.strip()}" if quoted else line.strip().removeprefix("$ ")
    array = re.match(r"(\w+)=\(", line)
    if (line.partition(" ")[0] not in PROGRAMS and not array) or "──" in line:  # a drawing
      continue
    quoted = line if line.count("'") % 2 or (array and ")" not in line) else ""
    if quoted:
      continue
    command = re.sub(r"\s+", " ", re.sub(r"\s+# .*", "", line)).strip()
    if array:
      arrays[f'"${{{array[1]}[@]}}"'] = command[len(array[0]) : -1]
    else:
      for name, words in arrays.items():
        command = command.replace(name, words)
      found.append(command)
  return found


def joined(text: str) -> str:
  """Returns a text with lines that end in a backslash joined to the next line."""
  return re.sub(r"\s*\\\n\s*", " ", text)


def docstrings(source: str) -> list[str]:
  """Returns the docstrings of a module and of everything in it, and texts of help that show commands."""
  nodes = [
    node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
  ]
  texts = [ast.get_docstring(node) for node in nodes]
  return [text for text in texts if text]


def of_docstring(text: str) -> list[str]:
  """Returns the commands of a docstring: in indented blocks, in backticks, and those that end a line of prose."""
  found = of_markdown(text)
  prose = re.sub(r"python -m\s+", "python -m ", re.sub(r"`[^`]+`", "", joined(split(text)[1])))
  for match in re.finditer(rf"{IN_PROSE}[^\n]*", prose):
    command = re.sub(r"\s{2,}#? .*", "", re.split(r"(?:, or |; |: | \(|\.(?:\s|$)|, (?=[a-z0-9]))", match[0])[0])
    found.append(command.strip().rstrip(".,:;)"))
  return found


def of_makefile(text: str) -> list[str]:
  """Returns the commands of the recipes, without the folder of the environment."""
  text = re.sub(r"\$\(call quote,(\$\(\w+\))\)", r"\1", text)
  text = text.replace("\t$(PIP)", f"\t{re.search(r'^PIP := (.*)$', text, re.MULTILINE)[1]}")
  return [
    line.strip().replace("$(BIN)/", "") for line in text.splitlines() if re.match(r"\t\$\(BIN\)/(python|ruff)", line)
  ]
