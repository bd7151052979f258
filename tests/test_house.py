"""The house rules that a machine can check: floors, tests for every module, links of the README."""

import ast
import graphlib
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = (
  {"schema", "config", "flags", "trees", "rng", "paths", "buckets", "files", "disk", "shapes"},
  {"losses", "metrics", "probes", "optim", "mesh", "models", "data", "hardware", "flops", "digests"},
  {"runtime", "checkpoints", "tasks", "steps", "events", "writer", "clock", "evals", "importers", "pictures",
   "identity"},
  {"build", "log", "measuring", "loop", "planning", "sweeps"},
  {"cli", "train", "evaluate", "fewshot", "sweep", "plan", "prepare", "convert"},
)  # fmt: skip
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
# What the rest of a floor stands on.
GROUND = {
  "schema",
  "paths",
  "buckets",
  "disk",
  "files",
  "mesh",
  "runtime",
  "events",
  "checkpoints",
  "build",
  "log",
  "cli",
}
LINES, FUNCTION = 320, 60


def each(files):
  """A test for each file, called by its path."""
  return pytest.mark.parametrize("file", files, ids=str)


FILES = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in sorted((ROOT / "vit_jax").rglob("*.py"))}
CONFIGS = {file.name: ast.parse(file.read_text()) for file in sorted((ROOT / "configs").glob("*.py"))}
SOURCES = [
  file for part in ("vit_jax", "configs", "benchmarks", "tests") for file in sorted((ROOT / part).rglob("*.py"))
]


def module(file):
  """`vit_jax.data.crops` of vit_jax/data/crops.py; a folder's own name of its __init__.py."""
  return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(file) for file in FILES}


def imported(tree):
  """Modules of vit_jax that a file imports, wherever in the file."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vit_jax":
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
  assert own in FLOOR, f"{own} stands on no floor; add it to FLOORS"
  for other in map(shelf, imported(FILES[file])):
    if other != own and not (other in GROUND and FLOOR[other] == FLOOR[own]):
      assert FLOOR[other] < FLOOR[own], f"{own} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})"


def test_no_import_goes_round_in_a_circle():
  graph = {module(file): set(imported(tree)) - {module(file)} for file, tree in FILES.items()}
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("file", CONFIGS)
def test_a_config_imports_the_words_only(file):
  assert set(imported(CONFIGS[file])) <= {"vit_jax.config"}


@each([file for file in FILES if not file.endswith("__init__.py")])
def test_every_module_has_a_test_file(file):
  path = pathlib.Path(file.replace("vit_jax", "tests", 1))
  assert (ROOT / path.with_name(f"test_{path.name}")).exists()


@each([file.relative_to(ROOT) for file in SOURCES])
def test_a_file_is_read_at_one_sitting(file):
  assert len((ROOT / file).read_text().splitlines()) <= LINES


@each(FILES)
def test_a_function_is_seen_at_once(file):
  # Without signature and docstring, which may be the schema of a config.
  for node in ast.walk(FILES[file]):
    if isinstance(node, ast.FunctionDef):
      body = node.body[ast.get_docstring(node) is not None :]
      lines = node.end_lineno - body[0].lineno + 1 if body else 0
      assert lines <= FUNCTION, f"{file}:{node.lineno} {node.name}: {lines} lines"


def test_partition_specs_are_named_in_one_file():
  assert [file for file in FILES if "PartitionSpec" in (ROOT / file).read_text()] == ["vit_jax/mesh.py"]


def test_no_module_catches_everything():
  catching = {
    file
    for file, tree in FILES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ExceptHandler)
    and (
      node.type is None
      or {"Exception", "BaseException"} & {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
    )
  }
  # Orbax raises plain Exception on a truncated file; checkpoints.restore tries the one before. A config file is a
  # program of the user's, and raises what it likes. A thread hands its error, whatever it is, to the one that waits.
  assert catching == {
    "vit_jax/checkpoints/reading.py",
    "vit_jax/checkpoints/store.py",
    "vit_jax/flags.py",
    "vit_jax/data/prefetch.py",
  }


def test_what_is_imported_is_what_setup_asks_for():
  setup = (ROOT / "setup.py").read_text()
  packages = {
      "jax": "jax", "flax": "flax", "optax": "optax", "orbax": "orbax-checkpoint", "grain": "grain",
      "tensorflow_datasets": "tensorflow-datasets", "ml_collections": "ml-collections", "clu": "clu",
      "einops": "einops", "numpy": "numpy", "cv2": "opencv-python-headless", "sklearn": "scikit-learn",
      "tensorflow": "tensorflow-cpu", "safetensors": "safetensors", "ml_dtypes": "ml_dtypes", "torch": "torch",
      "matplotlib": "matplotlib", "rich": "rich", "tensorboard": "tensorboard", "jaxtyping": "jaxtyping",
      "google": "protobuf", "array_record": "array_record", "etils": "etils", "fsspec": "gcsfs", "gcsfs": "gcsfs",
      "aiohttp": "gcsfs", "requests": "gcsfs", "nvidia": "nvidia-nvimgcodec-cu12",
  }  # fmt: skip
  standard = sys.stdlib_module_names
  for file, tree in FILES.items():
    for node in ast.walk(tree):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [node.module]
      for top in {name.split(".")[0] for name in names} - standard - {"vit_jax"}:
        assert re.search(rf'"{re.escape(packages[top])}>=', setup), f"{file} imports {top}"


def test_paths_in_the_readme_exist():
  readme = (ROOT / "README.md").read_text()
  for path in re.findall(r"\]\((?!http)([^)#]+)\)", readme) + re.findall(
    r"`((?:configs|tests|benchmarks|vit_jax)/[\w/]+\.py)`", readme
  ):
    assert (ROOT / path).exists(), path
