"""The house rules that a machine can check: floors, tests for every module, links of the README."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = (
  {"schema", "config", "flags", "trees", "rng", "files"},
  {"losses", "metrics", "probes", "optim", "mesh", "models", "data", "hardware", "flops"},
  {"runtime", "checkpoints", "tasks", "steps", "events", "writer", "clock", "evals", "importers", "pictures"},
  {"build", "measure", "loop", "planning", "sweeps"},
  {"cli", "train", "evaluate", "fewshot", "sweep", "plan", "prepare", "convert"},
)  # fmt: skip
FLOOR = {name: height for height, names in enumerate(FLOORS) for name in names}
# What the rest of a floor stands on.
GROUND = {"schema", "mesh", "runtime", "events", "checkpoints", "build", "cli"}
FILES = sorted((ROOT / "vit_jax").rglob("*.py"))


def shelf(file):
  """The module, or the folder that is meant to grow, that a file belongs to."""
  return file.relative_to(ROOT / "vit_jax").parts[0].removesuffix(".py")


def imported(file):
  """Modules or shelves of vit_jax that a file imports, wherever in the file."""
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.ImportFrom) and node.module == "vit_jax":
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit_jax."):
      yield node.module.split(".")[1]
    elif isinstance(node, ast.Import):
      yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("vit_jax."))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_file_imports_only_from_lower_floors(file):
  if file.name == "__init__.py" and file.parent.name == "vit_jax":
    return
  own = shelf(file)
  assert own in FLOOR, f"{own} stands on no floor; add it to FLOORS"
  for other in imported(file):
    if other != own and not (other in GROUND and FLOOR[other] == FLOOR[own]):
      assert FLOOR[other] < FLOOR[own], f"{own} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})"


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.py")), ids=lambda f: f.name)
def test_a_config_imports_the_words_only(file):
  assert set(imported(file)) <= {"config"}


@pytest.mark.parametrize("file", [f for f in FILES if f.name != "__init__.py"], ids=lambda f: str(f.relative_to(ROOT)))
def test_every_module_has_a_test_file(file):
  folder = ROOT / "tests" / file.parent.relative_to(ROOT / "vit_jax")
  assert (folder / f"test_{file.name}").exists()


def test_partition_specs_are_named_in_one_file():
  users = [f.name for f in FILES if re.search(r"PartitionSpec", f.read_text())]
  assert users == ["mesh.py"]


def test_no_module_catches_everything():
  # Orbax raises plain Exception on a truncated file; checkpoints.restore tries the one before.
  for file in (file for file in FILES if file.name != "checkpoints.py"):
    for node in ast.walk(ast.parse(file.read_text())):
      if isinstance(node, ast.ExceptHandler):
        assert node.type is not None and getattr(node.type, "id", "") not in ("Exception", "BaseException"), file


def test_what_is_imported_is_what_setup_asks_for():
  setup = (ROOT / "setup.py").read_text()
  packages = {
      "jax": "jax", "flax": "flax", "optax": "optax", "orbax": "orbax-checkpoint", "grain": "grain",
      "tensorflow_datasets": "tensorflow-datasets", "ml_collections": "ml-collections", "clu": "clu",
      "einops": "einops", "numpy": "numpy", "cv2": "opencv-python-headless", "sklearn": "scikit-learn",
      "tensorflow": "tensorflow-cpu", "safetensors": "safetensors", "ml_dtypes": "ml_dtypes", "torch": "torch",
      "matplotlib": "matplotlib", "rich": "rich", "tensorboard": "tensorboard",
  }  # fmt: skip
  standard = __import__("sys").stdlib_module_names
  for file in FILES:
    for node in ast.walk(ast.parse(file.read_text())):
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
