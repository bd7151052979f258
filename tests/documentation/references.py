"""Finds names of code in docstrings, messages and pages that this repository does not define.

The definitions come from syntax trees, so nothing is imported. These texts are references:

- a path such as `vit_jax/data/mixup.py`, and a dotted name such as `vit_jax.data.mixup`, anywhere in a text
- the end of a path in backticks, such as `data/mixup.py`
- a dotted name in backticks, such as `mixup.MIXINGS` or `GoodputTracker.rate`
- a single identifier in backticks, such as `make_mixing`, which must occur in some program of the repository
"""

import ast
import functools
import re
from collections.abc import Iterator

from tests.documentation.extraction import ROOT

FOLDERS = ("vit_jax", "launch", "configs", "benchmarks", "examples", "tests")
PATHS = [file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
PATHS += ["setup.py"]
FILES = [file for file in PATHS if not file.startswith("tests/")]
MODULES = {file[:-3].replace("/", ".").removesuffix(".__init__"): file for file in FILES}
PACKAGES = {file.rpartition("/")[0].replace("/", ".") for file in PATHS}
PLACES = {*MODULES, *PACKAGES, *(file[:-3].replace("/", ".") for file in PATHS)} - {""}
ROOTS = "vit_jax|launch|configs|benchmarks|tests"
DOTTED = re.compile(rf"(?<![\w./-])(?:{ROOTS})(?:\.[A-Za-z_]\w*)+(?![\w/])")
PATH = re.compile(rf"(?<![\w./-])(?:{ROOTS}|docs|examples)/[\w/.*-]*\.(?:py|md)\b")
FILE = re.compile(r"([\w/-]+\.py)(?::\S*)?")
CHAIN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# Ends of names that are files, not attributes.
ENDINGS = {
  "json",
  "jsonl",
  "html",
  "png",
  "jpg",
  "cls",
  "db",
  "zip",
  "npz",
  "pth",
  "safetensors",
  "weight",
  "md",
  "cff",
}
# Base classes of other packages without attributes that a text would name.
PLAIN = {"NamedTuple", "Protocol", "Generic", "TypedDict", "Exception", "RuntimeError", "ValueError", "OSError"}
Definitions = dict[str, ast.AST | str]  # name -> definition, or dotted name of an import
DEFINED = ast.Module | ast.ClassDef | ast.FunctionDef


def list_docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
  """Yields the docstrings of a module and of everything in it."""
  for node in ast.walk(tree):
    if isinstance(node, DEFINED) and ast.get_docstring(node):
      yield node.body[0].value


def list_words(tree: ast.AST) -> Iterator[str]:
  """Yields the identifiers of a program, and the words in its strings that are not docstrings."""
  skipped = {id(node) for node in list_docstrings(tree)}
  for node in ast.walk(tree):
    match node:
      case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
        yield name
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        yield name
      case ast.alias(name=name):
        yield from name.split(".")
      case ast.Constant(value=str(text)) if id(node) not in skipped:
        yield from re.findall(r"\w+", text)


@functools.cache
def parse(file: str) -> ast.Module:
  """Returns the syntax tree of a file of the repository."""
  return ast.parse((ROOT / file).read_text())


def parse_module(place: str) -> ast.Module:
  """Returns the syntax tree of a module, or an empty one if the repository does not contain the module."""
  return parse(MODULES[place]) if place in MODULES else ast.Module([], [])


@functools.cache
def find_words() -> set[str]:
  """Returns the identifiers of all programs, and the words in their strings that are not docstrings."""
  return {word for file in FILES for word in list_words(parse(file))} | {
    word
    for file in PATHS
    if file.startswith("tests/") and not file.endswith("test_references.py")
    for word in re.findall(r"\w+", (ROOT / file).read_text())
  }


@functools.cache
def list_classes() -> list[tuple[str, ast.ClassDef]]:
  """Returns the classes at the top level of all modules, with the names of the modules."""
  return [(name, node) for name in MODULES for node in parse_module(name).body if isinstance(node, ast.ClassDef)]


@functools.cache
def find_foreign() -> set[str]:
  """Returns the names of packages of other projects that a program imports."""
  return {
    each.name.split(".")[0] if isinstance(node, ast.Import) else each.asname or each.name
    for file in FILES
    for node in ast.walk(parse(file))
    if isinstance(node, ast.Import)
    or (isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.split(".")[0] not in FOLDERS)
    for each in node.names
  } - {*FOLDERS}


@functools.cache
def find_keys() -> set[str]:
  """Returns first components of config keys: fields of the classes of a config, and choices inside `model`."""
  return {
    node.target.id
    for file in ("vit_jax/config/run.py", "vit_jax/models/vit.py")
    for node in ast.walk(parse(file))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
  } | {"config", "run", "attention", "mlp", "norm", "position"}


@functools.cache
def list_names(place: str) -> Definitions:
  """Returns the names that a module defines or imports, and the submodules of a package."""
  names: Definitions = {each.rpartition(".")[2]: each for each in PLACES if each.rpartition(".")[0] == place}
  for node in ast.walk(parse_module(place)):
    if isinstance(node, ast.Import):
      names |= {each.asname or each.name.split(".")[0]: each.name for each in node.names}
    elif isinstance(node, ast.ImportFrom):
      package = [place.rpartition(".")[0]] if node.level else []  # of a relative import
      module = ".".join([*package, *filter(None, [node.module])])
      names |= {each.asname or each.name: f"{module}.{each.name}" for each in node.names}
  return names | list_body(parse_module(place)) if place in MODULES else names


def list_body(parent: ast.AST) -> Definitions:
  """Returns the names that the body of a module or class defines, also below `if` and `try`."""
  found: Definitions = {}
  waiting = [*getattr(parent, "body", []), *getattr(parent, "orelse", [])]
  for node in waiting:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      found[node.name] = node
    else:
      stored = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
      found |= {each.id: node for each in stored} | list_body(node)
  return found


@functools.cache
def list_members(node: ast.ClassDef) -> set[str]:
  """Returns the names that the body of a class defines, and the attributes of `self` in its methods."""
  attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
  own = {each.attr for each in attributes if isinstance(each.value, ast.Name) and each.value.id == "self"}
  return own | {*list_body(node)}


def is_member(place: str, node: ast.ClassDef, name: str) -> bool:
  """Returns True if a class or a base class defines an attribute, or if a base class is of another package."""
  if name in list_members(node):
    return True
  bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
  return any(exists(place, [*base.split("."), name]) for base in bases if base.rpartition(".")[2] not in PLAIN)


def exists(place: str, names: list[str]) -> bool:
  """Returns True if a module or package has an attribute, written as a chain of names.

  Names of other packages exist. Attributes of values and functions are not checked.
  """
  first, *rest = names
  target = list_names(place).get(first)
  if isinstance(target, ast.ClassDef):
    return not rest or is_member(place, target, rest[0])
  return resolves([*target.split("."), *rest]) if isinstance(target, str) else target is not None


@functools.cache
def list_variables(place: str) -> set[str]:
  """Returns the names of the variables, parameters and attributes in a module."""
  nodes = list(ast.walk(parse_module(place)))
  names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
  return names | {node.arg for node in nodes if isinstance(node, ast.arg)}


def resolves(parts: list[str]) -> bool:
  """Returns True if a dotted name exists in this repository, or belongs to another package."""
  if parts[0] not in FOLDERS:
    return True
  height = max(i + 1 for i in range(len(parts)) if ".".join(parts[: i + 1]) in PLACES)
  return height == len(parts) or exists(".".join(parts[:height]), parts[height:])


def is_known(chain: list[str], place: str) -> bool:
  """Returns True if a dotted name in backticks exists.

  Args:
    chain: components of the name.
    place: module of the docstring, or "" for a page.
  """
  first, *rest = chain
  if first in find_keys() or chain[-1] in ENDINGS:
    return chain[-1] in find_words() | ENDINGS
  if first in list_names(place):
    return exists(place, chain)
  homes = [each for each in PLACES if each.rpartition(".")[2] == first]
  if any(exists(home, rest) for home in homes) or first in find_foreign():
    return True
  classes = [(home, node) for home, node in list_classes() if node.name == first]
  if classes or first[0].isupper():
    return any(is_member(home, node, rest[0]) for home, node in classes)
  # An attribute of an object, not a constant of a module.
  return not chain[-1].isupper() and {*chain} <= find_words() and (not homes or first in list_variables(place))


def find_unknown(text: str, place: str = "", single: bool = True) -> Iterator[str]:
  """Yields the references of a docstring or page that do not exist.

  Args:
    text: the text.
    place: module of the docstring, or "" for a page.
    single: whether single identifiers are checked.
  """
  yield from find_unknown_paths(text)
  for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
    if found := FILE.fullmatch(span):
      foreign = "/" in found[1] and found[1].split("/")[0] not in {each.rpartition(".")[2] for each in PACKAGES}
      if not foreign and not any(f"/{file}".endswith(f"/{found[1]}") for file in PATHS):
        yield span
    elif (found := CHAIN.match(span)) and not re.match(r"[/:.-]", span[found.end() :]):
      if not is_known(found[0].split("."), place):
        yield span
    elif single and IDENTIFIER.fullmatch(span) and span not in find_words():
      yield span


def find_unknown_paths(text: str) -> Iterator[str]:
  """Yields the paths and the dotted names from the root of the repository that do not exist, in any text."""
  yield from (
    each for each in DOTTED.findall(text) if not resolves(each.split(".")) and each.split(".")[-1] not in ENDINGS
  )
  yield from (each for each in PATH.findall(text) if not [*ROOT.glob(each)])
