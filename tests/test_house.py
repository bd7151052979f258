"""Tests of the project's rules that can be checked automatically: layers, test files, links in pages."""

import ast
import functools
import graphlib
import io
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
VERBS = {"train", "evaluate", "predict", "fewshot", "sweep", "plan", "prepare", "convert", "report"}
# A room is a folder or module at the top level. It imports only rooms on lower floors.
FLOORS = (
  {"schema", "rng", "trees", "shapes", "platforms", "resources"},
  {"storage", "optim", "losses", "certificates", "__main__"},
  {"config"},
  {"parallel", "runtime"},
  {"data", "models"},
  {"selfsup"},
  {"checkpoints", "corpora", "tasks"},
  {"evals", "importers"},
  {"training", "register", "cli"},
  {"inference", "planning", "sweeps"},
  {"reports"},
  VERBS,
)
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
LINES, FUNCTION = 300, 60  # maximum lines of code of a file and of a function; documentation does not count


def find_files(folder):
  """Returns the paths of the Python files below a folder."""
  return [str(file.relative_to(ROOT)) for file in sorted((ROOT / folder).rglob("*.py"))]


FILES = find_files("vit_jax")
LAUNCH = find_files("launch")
CONFIGS = find_files("configs")


@functools.cache
def parse(file):
  """Returns the syntax tree of a file, which is parsed at the first call."""
  # `launch` must parse with the Python version that TPU VMs have before any installation.
  return ast.parse((ROOT / file).read_text(), feature_version=(3, 10) if file in LAUNCH else None)


SOURCES = [
  file
  for part in ("vit_jax", "launch", "configs", "benchmarks", "examples", "tests")
  for file in sorted((ROOT / part).rglob("*.py"))
]


def module(file):
  """Returns the module name of a file, such as `vit_jax.data.crops`. An __init__.py has the name of its folder."""
  return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(file) for file in (*FILES, *LAUNCH)}


@functools.cache
def imported(file):
  """Returns the modules of vit_jax and launch that a file imports anywhere."""
  return [*find_imports(parse(file))]


def find_imports(tree):
  """Yields the modules of vit_jax and launch that a syntax tree imports."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (package := name_module(node)).split(".")[0] in ("vit_jax", "launch"):
      for alias in node.names:
        inside = f"{package}.{alias.name}"
        yield inside if inside in MODULES else package
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names if alias.name in MODULES)


def name_module(node):
  """Returns the full name of the module of a `from` import. Only `launch` has relative imports."""
  return ".".join([*["launch"] * node.level, *filter(None, [node.module])])


def shelf(name):
  """Returns the room of a module: the top-level module or folder that contains it."""
  return name.partition(".")[2].partition(".")[0]


def test_files_import_only_from_lower_floors():
  wrong = []
  for file in FILES:
    own = shelf(module(file))
    assert own in FLOOR or file == "vit_jax/__init__.py", f"{own} is on no floor; add it to FLOORS"
    for other in {*map(shelf, imported(file))} - {own} if own in FLOOR else ():
      if FLOOR[other] >= FLOOR[own]:
        wrong.append(f"{file} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})")
  assert wrong == []


def test_top_level_has_at_most_eight_modules_and_the_verbs():
  modules = {module(file).split(".")[1] for file in FILES if file.count("/") == 1 and "__" not in file}
  assert len(modules - VERBS) <= 8


FACES = [file for file in FILES if file.endswith("/__init__.py") and file != "vit_jax/__init__.py"]


def test_init_files_of_packages_only_import():
  for file in FACES:
    documentation, *rest = parse(file).body
    assert isinstance(documentation, ast.Expr), file
    assert all(isinstance(node, ast.ImportFrom) for node in rest), file


def test_files_do_not_import_the_init_file_of_their_package():
  packages = {file: module(file).rpartition(".")[0] for file in FILES if file not in FACES}
  assert [file for file, package in packages.items() if package != "vit_jax" and package in imported(file)] == []


@pytest.mark.parametrize("files", [FILES, LAUNCH], ids=["vit_jax", "launch"])
def test_imports_have_no_cycles(files):
  graph = {module(file): {*imported(file)} - {module(file)} for file in files}
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    pytest.fail(" <- ".join(error.args[1]))


def test_configs_import_only_vit_jax_config():
  assert {file: found for file in CONFIGS if (found := {*imported(file)} - {"vit_jax.config"})} == {}


def test_every_module_has_a_test_file():
  paths = [pathlib.Path("tests") / file.removeprefix("vit_jax/") for file in (*FILES, *LAUNCH)]
  tests = [path.with_name(f"test_{path.stem.strip('_')}.py") for path in paths if path.name != "__init__.py"]
  assert [str(test) for test in tests if not (ROOT / test).exists()] == []


def test_launch_imports_only_the_standard_library():
  allowed = (sys.stdlib_module_names | {"launch"}) - {"tomllib"}  # added in Python 3.11
  tops = {file: {name.split(".")[0] for name in list_imports(parse(file))} for file in LAUNCH}
  assert {file: names - allowed for file, names in tops.items() if names - allowed} == {}


def test_only_launch_has_relative_imports_and_no_others_of_itself():
  """An installed package has another name than the folder, see setup.py."""
  levels = {
    file: {node.level for node in ast.walk(parse(file)) if isinstance(node, ast.ImportFrom)}
    for file in (*FILES, *LAUNCH)
  }
  assert [file for file in FILES if levels[file] - {0}] == [] == [file for file in LAUNCH if levels[file] - {0, 1}]
  absolute = {
    file: [node for node in ast.walk(parse(file)) if isinstance(node, ast.ImportFrom) and node.level == 0]
    for file in LAUNCH
  }
  assert [file for file, nodes in absolute.items() if "launch" in {node.module.split(".")[0] for node in nodes}] == []


@pytest.mark.heavy
def test_launch_is_importable_without_installed_packages():
  modules = [module(file) for file in LAUNCH if not file.endswith("__main__.py")]
  code = f"import sys; sys.path = [path for path in sys.path if 'site-packages' not in path] + [{str(ROOT)!r}]; "
  subprocess.run([sys.executable, "-S", "-I", "-c", code + f"import {', '.join(modules)}"], check=True)


def list_imports(tree):
  """Yields the full names of all modules that a file imports."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield name_module(node)


def code_lines(text):
  """Returns the numbers of the lines with code, without blank lines, comments and docstrings."""
  empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
  lines = set()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type not in empty:
      lines |= {*range(token.start[0], token.end[0] + 1)}
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
      lines -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
  return lines


def test_code_lines_are_counted_without_documentation():
  text = '"""Doc.\n\nMore."""\n\n# comment\ndef f():\n  """Doc."""\n  return """a\nb"""  # why\n'
  assert code_lines(text) == {6, 8, 9}


def test_files_have_at_most_300_lines_of_code():
  texts = {file: file.read_text() for file in SOURCES}
  counts = {file: len(code_lines(text)) for file, text in texts.items() if text.count("\n") > LINES}
  assert {file: count for file, count in counts.items() if count > LINES} == {}


def find_long_functions(file):
  """Yields the place, name and number of lines of functions that are too long."""
  # The signature does not count, because it may be the schema of a config.
  functions = [node for node in ast.walk(parse(file)) if isinstance(node, ast.FunctionDef)]
  if any(node.end_lineno - node.body[0].lineno >= FUNCTION for node in functions):
    code = code_lines((ROOT / file).read_text())
    for node in functions:
      lines = len(code & {*range(node.body[0].lineno, node.end_lineno + 1)})
      if lines > FUNCTION:
        yield f"{file}:{node.lineno} {node.name}: {lines} lines"


def test_functions_have_at_most_60_lines_of_code():
  assert [place for file in (*FILES, *LAUNCH) for place in find_long_functions(file)] == []


def find_untyped(tree):
  """Yields (line, name) of functions without some type, and of each `Callable` without parameters."""
  classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
  methods = {id(child) for node in classes for child in node.body}
  given = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
  for node in ast.walk(tree):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      arguments = [*node.args.posonlyargs, *node.args.args]
      static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
      arguments = arguments[1:] if id(node) in methods and not static else arguments
      arguments += [each for each in (*node.args.kwonlyargs, node.args.vararg, node.args.kwarg) if each]
      if node.returns is None or any(each.annotation is None for each in arguments):
        yield node.lineno, node.name
    elif isinstance(node, ast.Name) and node.id == "Callable" and id(node) not in given:
      yield node.lineno, "Callable"


def test_functions_without_types_are_found():
  text = "class A:\n  def f(self, x): ...\n  def g(self, x: int) -> int: ...\ndef h(*y) -> int: ...\nz: Callable\n"
  assert sorted(find_untyped(ast.parse(text + "w: Callable[[], int]"))) == [(2, "f"), (4, "h"), (5, "Callable")]


def test_every_function_is_annotated_and_callables_have_parameters():
  files = (*FILES, *LAUNCH)
  assert [f"{file}:{line} {name}" for file in files for line, name in find_untyped(parse(file))] == []


def test_partition_specs_are_used_in_one_file_only():
  assert [file for file in FILES if "PartitionSpec" in (ROOT / file).read_text()] == ["vit_jax/parallel/sharding.py"]


def test_only_listed_modules_catch_all_exceptions():
  catching = {
    file
    for file in (*FILES, *LAUNCH)
    for node in ast.walk(parse(file))
    if isinstance(node, ast.ExceptHandler)
    and (
      node.type is None
      or {"Exception", "BaseException"} & {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
    )
  }
  # Orbax raises plain Exception on a truncated file, and the previous checkpoint is restored. A config file is a user's
  # program and may raise any exception. A thread passes any error to the waiting thread. If the report page of a
  # finished run fails, its traceback is printed and the run stays successful.
  assert catching == {
    "vit_jax/checkpoints/reading.py",
    "vit_jax/checkpoints/store.py",
    "vit_jax/config/extensions/running.py",
    "vit_jax/data/prefetch.py",
    "vit_jax/reports/report.py",
  }


def test_imported_packages_are_required_in_setup():
  setup = (ROOT / "setup.py").read_text()
  packages = {
      "jax": "jax", "flax": "flax", "optax": "optax", "orbax": "orbax-checkpoint", "grain": "grain",
      "tensorflow_datasets": "tensorflow-datasets", "ml_collections": "ml-collections", "clu": "clu",
      "einops": "einops", "numpy": "numpy", "cv2": "opencv-python-headless", "sklearn": "scikit-learn",
      "scipy": "scipy",
      "tensorflow": "tensorflow-cpu", "safetensors": "safetensors", "ml_dtypes": "ml_dtypes",
      "matplotlib": "matplotlib", "rich": "rich", "tensorboard": "tensorboard", "jaxtyping": "jaxtyping",
      "google": "protobuf", "array_record": "array_record", "etils": "etils", "fsspec": "gcsfs", "gcsfs": "gcsfs",
      "aiohttp": "gcsfs", "requests": "gcsfs", "nvidia": "nvidia-nvimgcodec-cu12", "simplejpeg": "simplejpeg",
      "PIL": "pillow", "jinja2": "jinja2", "altair": "altair", "vl_convert": "vl-convert-python",
      "pyarrow": "pyarrow", "imagehash": "imagehash", "apache_beam": "apache-beam",
      "wandb": "wandb", "mlflow": "mlflow-skinny", "trackio": "trackio",
      "onnx": "onnx", "onnxruntime": "onnxruntime", "huggingface_hub": "huggingface_hub", "httpx2": "huggingface_hub",
        "cryptography": "model-signing",
  }  # fmt: skip
  standard = sys.stdlib_module_names
  for file in FILES:
    for top in {name.split(".")[0] for name in list_imports(parse(file))} - standard - {"vit_jax"}:
      assert re.search(rf'"{re.escape(packages[top])}>=', setup), f"{file} imports {top}"


def test_names_of_tests_have_at_most_80_characters():
  names = [name for file in SOURCES for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
  assert len(names) > 1000 and [name for name in names if len(name) > 80] == []


PAGES = [
  *sorted(path.name for path in ROOT.glob("*.md")),
  *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_pages_exist(page):
  text, folder = (ROOT / page).read_text(), (ROOT / page).parent
  generated = re.findall(r'"(reference/[\w-]+\.md)": ', (ROOT / "docs/generate.py").read_text())
  assert len(generated) >= 8
  for path in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
    target = (folder / path).resolve()
    assert target.exists() or target in [ROOT / "docs" / each for each in generated], path
  for path in re.findall(r"`((?:configs|tests|benchmarks|vit_jax|launch|docs)/[\w/]+\.py)`", text):
    assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_linked_chapters_of_pages_exist(page):
  text, folder = (ROOT / page).read_text(), (ROOT / page).parent
  for path, chapter in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text):
    target = folder / path if path else ROOT / page
    if target.parent.name == "reference":  # a generated page; the build of the site checks its chapters
      continue
    heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    names = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert chapter in names, f"{path}#{chapter}"
