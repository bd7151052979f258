"""The house rules that a machine can check: floors, tests for every module, links of the pages."""

import ast
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
# A room is a folder or a module of the top level. It imports only rooms on lower floors.
FLOORS = (
  {"schema", "rng", "trees", "shapes", "platforms", "resources"},
  {"storage", "optim", "losses", "__main__"},
  {"config"},
  {"parallel", "runtime"},
  {"data", "models"},
  {"checkpoints", "corpora", "tasks"},
  {"evals", "importers"},
  {"training", "register", "cli"},
  {"inference", "planning", "sweeps"},
  {"reports"},
  VERBS,
)
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
LINES, FUNCTION = 300, 60  # lines of code of a file and of a function; documentation may be as long as it needs


def each(files):
  """A test for each file, called by its path."""
  return pytest.mark.parametrize("file", files, ids=str)


def parsed(folder, **version):
  """{path: syntax tree} of the Python files below a folder."""
  return {
    str(file.relative_to(ROOT)): ast.parse(file.read_text(), **version)
    for file in sorted((ROOT / folder).rglob("*.py"))
  }


FILES = parsed("vit_jax")
LAUNCH = parsed("launch", feature_version=(3, 10))  # what TPU VMs have before anything is installed
CONFIGS = {file.name: ast.parse(file.read_text()) for file in sorted((ROOT / "configs").rglob("*.py"))}
SOURCES = [
  file
  for part in ("vit_jax", "launch", "configs", "benchmarks", "examples", "tests")
  for file in sorted((ROOT / part).rglob("*.py"))
]


def module(file):
  """`vit_jax.data.crops` of vit_jax/data/crops.py; a folder's own name of its __init__.py."""
  return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(file) for file in (*FILES, *LAUNCH)}


def imported(tree):
  """Modules of vit_jax and launch that a file imports, wherever in the file."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("vit_jax", "launch"):
      for alias in node.names:
        inside = f"{node.module}.{alias.name}"
        yield inside if inside in MODULES else node.module
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names if alias.name in MODULES)


def shelf(name):
  """The module, or the folder that is meant to grow, that a module belongs to."""
  return name.split(".")[1]


@each([file for file in FILES if file != "vit_jax/__init__.py"])
def test_a_file_imports_only_from_lower_floors(file):
  own = shelf(module(file))
  assert own in FLOOR, f"{own} is on no floor; add it to FLOORS"
  for other in {*map(shelf, imported(FILES[file]))} - {own}:
    assert FLOOR[other] < FLOOR[own], f"{own} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})"


def test_the_top_level_has_at_most_eight_modules_beside_the_verbs():
  modules = {module(file).split(".")[1] for file in FILES if file.count("/") == 1 and "__" not in file}
  assert len(modules - VERBS) <= 8


FACES = [file for file in FILES if file.endswith("/__init__.py") and file != "vit_jax/__init__.py"]


@each(FACES)
def test_the_init_file_of_a_package_only_imports(file):
  documentation, *rest = FILES[file].body
  assert isinstance(documentation, ast.Expr)
  assert all(isinstance(node, ast.ImportFrom) for node in rest)


@each(FILES)
def test_a_file_imports_its_neighbours_and_not_the_init_file_of_its_package(file):
  package = module(file).rpartition(".")[0]
  if file not in FACES and package != "vit_jax":
    assert package not in imported(FILES[file])


@pytest.mark.parametrize("files", [FILES, LAUNCH], ids=["vit_jax", "launch"])
def test_no_import_goes_round_in_a_circle(files):
  graph = {module(file): set(imported(tree)) - {module(file)} for file, tree in files.items()}
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("file", CONFIGS)
def test_a_config_imports_the_words_only(file):
  assert set(imported(CONFIGS[file])) <= {"vit_jax.config"}


@each([file for file in (*FILES, *LAUNCH) if not file.endswith("__init__.py")])
def test_every_module_has_a_test_file(file):
  path = pathlib.Path(file.replace("vit_jax", "tests", 1) if file in FILES else f"tests/{file}")
  assert (ROOT / path.with_name(f"test_{path.stem.strip('_')}.py")).exists()


@each(LAUNCH)
def test_launch_needs_nothing_but_python(file):
  allowed = (sys.stdlib_module_names | {"launch"}) - {"tomllib"}  # which came with 3.11
  assert {name.split(".")[0] for name in named(LAUNCH[file])} <= allowed


@pytest.mark.heavy
def test_launch_is_imported_by_a_python_that_has_nothing_else():
  modules = [module(file) for file in LAUNCH if not file.endswith("__main__.py")]
  code = f"import sys; sys.path = [path for path in sys.path if 'site-packages' not in path] + [{str(ROOT)!r}]; "
  subprocess.run([sys.executable, "-S", "-I", "-c", code + f"import {', '.join(modules)}"], check=True)


def named(tree):
  """What a file imports from anywhere, by its whole name."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module if node.level == 0 else "."


def code_lines(text):
  """The numbers of the lines of a file with code: without blank lines, comments and docstrings."""
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


@each([file.relative_to(ROOT) for file in SOURCES])
def test_a_file_is_read_at_one_sitting(file):
  assert len(code_lines((ROOT / file).read_text())) <= LINES


@each(FILES | LAUNCH)
def test_a_function_is_seen_at_once(file):
  # The signature does not count, because it may be the schema of a config.
  code = code_lines((ROOT / file).read_text())
  for node in ast.walk((FILES | LAUNCH)[file]):
    if isinstance(node, ast.FunctionDef):
      lines = len(code & {*range(node.body[0].lineno, node.end_lineno + 1)})
      assert lines <= FUNCTION, f"{file}:{node.lineno} {node.name}: {lines} lines"


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


@each(FILES | LAUNCH)
def test_every_function_is_annotated_and_callables_have_parameters(file):
  assert [f"{file}:{line} {name}" for line, name in find_untyped((FILES | LAUNCH)[file])] == []


def test_partition_specs_are_named_in_one_file():
  assert [file for file in FILES if "PartitionSpec" in (ROOT / file).read_text()] == ["vit_jax/parallel/sharding.py"]


def test_no_module_catches_everything():
  catching = {
    file
    for file, tree in (FILES | LAUNCH).items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ExceptHandler)
    and (
      node.type is None
      or {"Exception", "BaseException"} & {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
    )
  }
  # Orbax raises plain Exception on a truncated file; checkpoints.restore tries the one before. A config file is a
  # program of the user's, and raises what it likes. A thread hands its error, whatever it is, to the one that waits.
  # What ends well has ended well, whatever is wrong with the page about it: its traceback is printed.
  assert catching == {
    "vit_jax/checkpoints/reading.py",
    "vit_jax/checkpoints/store.py",
    "vit_jax/config/extensions/running.py",
    "vit_jax/data/prefetch.py",
    "vit_jax/reports/report.py",
  }


def test_what_is_imported_is_what_setup_asks_for():
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
      "onnx": "onnx", "onnxruntime": "onnxruntime",
  }  # fmt: skip
  standard = sys.stdlib_module_names
  for file, tree in FILES.items():
    for top in {name.split(".")[0] for name in named(tree)} - standard - {"vit_jax"}:
      assert re.search(rf'"{re.escape(packages[top])}>=', setup), f"{file} imports {top}"


def test_names_of_tests_have_at_most_80_characters():
  names = [name for file in SOURCES for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
  assert len(names) > 1000 and [name for name in names if len(name) > 80] == []


PAGES = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_a_page_exist(page):
  text, folder = (ROOT / page).read_text(), (ROOT / page).parent
  generated = re.findall(r'"(reference/[\w-]+\.md)": ', (ROOT / "docs/generate.py").read_text())
  assert len(generated) >= 8
  for path in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
    target = (folder / path).resolve()
    assert target.exists() or target in [ROOT / "docs" / each for each in generated], path
  for path in re.findall(r"`((?:configs|tests|benchmarks|vit_jax|launch|docs)/[\w/]+\.py)`", text):
    assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_chapters_that_a_page_names_exist(page):
  text, folder = (ROOT / page).read_text(), (ROOT / page).parent
  for path, chapter in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text):
    target = folder / path if path else ROOT / page
    if target.parent.name == "reference":  # a generated page, whose chapters the build of the site checks
      continue
    heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    names = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert chapter in names, f"{path}#{chapter}"
