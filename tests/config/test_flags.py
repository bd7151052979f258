"""Tests of reading config files and flags, and of errors of one line."""

import re

import ml_collections
import pytest

from tests import runs
from vit_jax import config
from vit_jax.config import flags
from vit_jax.schema import ConfigError, Text


def test_overrides_are_read_in_both_forms_and_other_words_kept():
  words = ["a", "--config.optim.lr=1e-3", "--config", "b", "--config.data.path", "/my photos/a=b", "--config.seed=-1"]
  changes, others = flags.split_overrides(words)
  assert changes == {"optim.lr": "1e-3", "data.path": "/my photos/a=b", "seed": "-1"}
  assert others == ["a", "--config", "b"]


def test_override_without_a_value_is_an_error():
  with pytest.raises(ConfigError, match=r"--config\.seed: no value"):
    flags.split_overrides(["--config.seed"])


@pytest.mark.parametrize(
  ("body", "message"),
  [
    ("def get_config(): return 3", "returned a int"),
    ("def get_config(): return undefined", "NameError"),
    ("def get_config(", "SyntaxError"),
    ("x = 1", "does not define get_config"),
    ("import nothing_of_that_name as get_config", "ModuleNotFoundError"),
    ("class Odd(Exception): get_config = 1\nraise Odd('why')", "c.py, line 2: Odd: why"),
    ("def get_config():\n  raise MemoryError", "c.py, line 2: MemoryError"),
    ("raise SystemExit(0)\nget_config = None", "SystemExit"),
    ("def get_config(): return get_config()", "RecursionError"),
    ("a = '\0'", "null bytes"),
  ],
)
def test_broken_config_file_is_an_error_with_its_cause(tmp_path, body, message):
  file = tmp_path / "c.py"
  file.write_text(body)
  with pytest.raises(ConfigError, match=message):
    flags.load_config(str(file))


def test_missing_config_file_suggests_a_similar_file(tmp_path):
  (tmp_path / "digits.py").write_text("def get_config(): ...")
  with pytest.raises(ConfigError, match=r"no file.*Did you mean '.*digits.py'"):
    flags.load_config(str(tmp_path / "digit.py"))


def test_config_file_gets_its_argument(tmp_path):
  file = tmp_path / "c.py"
  file.write_text("from vit_jax.config import recipe\ndef get_config(arg='none'): return recipe(model=dict(name=arg))")
  assert flags.load_config(f"{file}:ViT-S/16").model.name == "ViT-S/16"
  assert flags.load_config(str(file)).model.name == "none"


def test_error_names_the_line_of_a_relative_path_with_an_argument(tmp_path, monkeypatch):
  (tmp_path / "c.py").write_text("\n\ndef get_config(word):\n  return int(word)\n")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=r"^--config: c\.py:x, line 4: ValueError: invalid literal"):
    flags.load_config("c.py:x")


def test_value_error_of_a_config_file_is_reported_unchanged(tmp_path, monkeypatch):
  (tmp_path / "c.py").write_text("\n\ndef get_config(word):\n  raise ValueError(f'unknown {word}. Allowed: y')\n")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=r"^--config: c\.py:x: unknown x. Allowed: y$"):
    flags.load_config("c.py:x")


def test_keyboard_interrupt_inside_a_config_file_is_not_caught(tmp_path):
  (tmp_path / "c.py").write_text("raise KeyboardInterrupt\nget_config = None")
  with pytest.raises(KeyboardInterrupt):
    flags.load_config(str(tmp_path / "c.py"))


def test_link_loops_and_folders_are_errors_without_suggestions(tmp_path):
  (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
  (tmp_path / "folder.py").mkdir()
  with pytest.raises(ConfigError) as caught:
    flags.load_config(str(tmp_path / "loop.py"))
  assert "no file" in str(caught.value) and "Did you mean" not in str(caught.value)
  with pytest.raises(ConfigError, match=r"folder\.py' is a folder"):
    flags.load_config(str(tmp_path / "folder.py"))


def test_key_of_thousands_of_words_is_an_error(tmp_path):
  (tmp_path / "c.py").write_text(
    "from vit_jax.config import recipe\ndef get_config(): return recipe(model=dict(name='x'))"
  )
  with pytest.raises(ConfigError, match="keys of the config have fewer than 50001 words"):
    flags.load_config(str(tmp_path / "c.py"), {"model" + ".x" * 50_000: "1"})


def test_has_key_finds_nested_keys():
  config = ml_collections.ConfigDict({"optim": {"lr": 0.1}, "seed": 0})
  assert flags.has_key(config, "optim.lr") and flags.has_key(config, "seed") and flags.has_key(config, "optim")
  assert not any(flags.has_key(config, key) for key in ("optim.ema", "data", "seed.x", "data.exif"))


@pytest.mark.parametrize(
  "parts",
  [
    ({"name": "tars"}, {"name": "folder", "path": "x"}),
    [{"name": "tars"}, {"name": "folder", "path": "x"}],
    Text("[dict(name='tars'), dict(name='folder', path='x')]"),
  ],
)
def test_index_in_a_key_selects_an_entry_of_a_list(parts):
  config = ml_collections.ConfigDict({"data": {"name": "mixture", "parts": parts}}, type_safe=False)
  assert flags.has_key(config, "data.parts[1].path") and flags.has_key(config, "data.parts[0]")
  assert not any(flags.has_key(config, f"data.{key}") for key in ("parts[0].path", "parts[2]", "name[0]", "x[0]"))
  flags.set_value(config, "data.parts[1].class_order", "text")
  flags.set_value(config, "data.parts[0].crop.name", "none")
  assert [part.to_dict() for part in config.data.parts] == [
    {"name": "tars", "crop": {"name": "none"}},
    {"name": "folder", "path": "x", "class_order": "text"},
  ]
  for key in ("parts[2]", "name[0]", "prats[0]"):
    with pytest.raises(ConfigError, match=rf"config.data has no group '{re.escape(key)}'"):
      flags.set_value(config, f"data.{key}.weight", "3")


def test_choice_is_parsed_from_flags_alone():
  chosen = flags.parse_choice({"name": "folder", "path": "/photos", "test_crop.name": "centre"}, "data")
  assert chosen.to_dict() == {"name": "folder", "path": "/photos", "test_crop": {"name": "centre"}}
  assert flags.parse_choice({}, "data").to_dict() == {}


# Errors for a --config that does not name a config.


@pytest.fixture
def clone(tmp_path, monkeypatch):
  """Creates a folder with recipes and makes it the current folder."""
  monkeypatch.setattr(flags, "__file__", str(tmp_path / "vit_jax/config/flags.py"))
  monkeypatch.chdir(tmp_path)
  for name in ("digits", "folder", "ablations/position"):
    file = tmp_path / f"configs/{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def get_config(): ...\n")
  return tmp_path


@pytest.mark.parametrize(
  ("path", "meant"),
  [
    ("config/folder.py", "configs/folder.py"),
    ("configs/folder", "configs/folder.py"),
    ("folder.py", "configs/folder.py"),
    ("digit", "digits"),
    ("ablation/position", "configs/ablations/position.py"),
    ("position", "configs/ablations/position.py"),
    ("fodler:ViT-S/16", "folder"),
    ("position.py", "configs/ablations/position.py"),
    ("configs/digit.py", "configs/digits.py"),
    ("configs/folder:ViT-S/16", "configs/folder.py"),
  ],
)
def test_wrong_path_suggests_the_nearest_recipe(clone, path, meant):
  name = path.partition(":")[0]
  with pytest.raises(ConfigError, match=rf"^--config: no file (or recipe )?'{name}'\. Did you mean '{meant}'\?"):
    flags.load_config(path)


def test_misspelt_recipe_is_suggested_although_the_folder_has_other_files(clone):
  (clone / "setup.py").touch()
  (clone / "mine.py").write_text("from configs.digits import get_config")
  with pytest.raises(ConfigError) as error:
    flags.load_config("digitz")
  problem, allowed = "--config: no file or recipe 'digitz'.", "ablations/position, digits, folder, mine.py"
  assert str(error.value) == f"{problem} Did you mean 'digits'? Allowed: {allowed}."
  with pytest.raises(ConfigError, match=r"Did you mean 'mine\.py'\?"):
    flags.load_config("mnie.py")
  with pytest.raises(
    ConfigError, match=r"Did you mean '(configs/digits.py)'\? Allowed: [a-z/]*, \1, configs/folder.py\.$"
  ):
    flags.load_config("configs/digitz.py")


def test_recipe_is_suggested_by_name_from_another_folder(clone, tmp_path_factory, monkeypatch):
  monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
  with pytest.raises(ConfigError, match=r"no file 'configs/digits\.py'\. Did you mean 'digits'\?"):
    flags.load_config("configs/digits.py")


@pytest.mark.parametrize(
  ("text", "split"),
  [
    ("digits", ("digits", "")),
    ("folder:ViT-S/16", ("folder", "ViT-S/16")),
    ("ablations/position:x", ("ablations/position", "x")),
    ("folder:x.py:y", ("folder", "x.py:y")),
  ],
)
def test_recipe_is_found_by_name_in_any_folder(clone, tmp_path_factory, monkeypatch, text, split):
  monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
  assert flags.split_argument(text) == (f"{clone}/configs/{split[0]}.py", split[1])


def test_installed_recipes_take_precedence_over_a_neighbouring_folder(clone):
  assert {*flags.list_recipes()} == {"digits", "folder", "ablations/position"}
  file = clone / "vit_jax/recipes/digits.py"
  file.parent.mkdir(parents=True)
  file.touch()
  assert flags.list_recipes() == {"digits": file}


@pytest.mark.parametrize("local", ["digits", "digits.py"])
def test_local_file_with_the_name_of_a_recipe_is_an_error(clone, tmp_path_factory, monkeypatch, local):
  folder = tmp_path_factory.mktemp("elsewhere")
  (folder / local).write_text("x = 1")
  monkeypatch.chdir(folder)
  with pytest.raises(ConfigError, match=rf"^--config: 'digits' is a recipe .* the file '{local}' exists too"):
    flags.split_argument("digits:x")
  assert flags.split_argument(f"./{local}") == (f"./{local}", "")
  monkeypatch.chdir(clone / "configs")  # there, digits.py is the recipe itself
  assert flags.split_argument("digits") == (f"{clone}/configs/digits.py", "")


@pytest.mark.parametrize("argument", ["a/b", "a.py", "x.py:y"])
def test_error_of_a_recipe_with_an_argument_names_the_line(clone, argument):
  (clone / "configs/folder.py").write_text("def get_config(word):\n  return int(word)\n")
  with pytest.raises(ConfigError, match=rf"^--config: folder:{argument}, line 2: ValueError: invalid literal"):
    flags.load_config(f"folder:{argument}")


def test_error_without_recipes_explains_how_to_write_a_config(tmp_path, monkeypatch):
  monkeypatch.setattr(flags, "__file__", str(tmp_path / "site-packages/vit_jax/config/flags.py"))
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError) as error:
    flags.load_config("configs/digits.py")
  message = str(error.value)
  assert message.startswith("--config: no file 'configs/digits.py'. Write a file that defines get_config()")
  assert "Allowed" not in message and "docs/extend/index.md" in message


@pytest.mark.parametrize(
  ("name", "body", "message"),
  [
    ("notes.md", "# Notes", r"'notes\.md' is not a Python file\. A config ends in \.py"),
    ("run.py", "open('made', 'w')", r"run\.py does not define get_config\(\), so it was not run as a config"),
    ("both.py", "from vit_jax.config import Sweep\ndef get_config(): return Sweep([{'seed': 1}], decide=None)",
     r"returned a Sweep, not recipe\(\.\.\.\)\. Return it from sweep\(\), and use python -m vit_jax\.sweep"),
  ],
)  # fmt: skip
def test_file_that_is_not_a_config_is_an_error_and_not_run(tmp_path, monkeypatch, name, body, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / name).write_text(body)
  with pytest.raises(ConfigError, match=message):
    flags.load_config(name)
  assert not (tmp_path / "made").exists()


def test_workdir_as_config_is_an_error(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(
    ConfigError, match=r"is a folder, not a file\. To continue or evaluate an existing run, use --workdir"
  ):
    flags.load_config(str(tmp_path))


@pytest.mark.parametrize(
  ("folder", "text", "split"),
  [
    ("a", "a/x.py", ("a/x.py", "")),
    ("a", "a/x.py:ViT-S/16", ("a/x.py", "ViT-S/16")),
    ("gs:", "gs:/x.py:B,i1k", ("gs:/x.py", "B,i1k")),
    ("a:b", "a:b/x.py", ("a:b/x.py", "")),
    ("a.py:", "a.py:/x.py:y.py:z", ("a.py:/x.py", "y.py:z")),
    ("a", "gone:/x.py:B", ("gone:/x.py", "B")),
    ("a", "gone:B", ("gone", "B")),
  ],
)
def test_path_and_argument_are_split_at_the_right_colon(folder, text, split, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / folder).mkdir()
  (tmp_path / folder / "x.py").touch()
  assert flags.split_argument(text) == split


SHARED = """
import ml_collections
from vit_jax.config import recipe
shared = %s

def get_config():
  config = recipe(data=%s, evals=dict(a=dict(name="accuracy", data=shared)))
  %s
  return config
"""


@pytest.mark.parametrize(
  "group",
  [
    "dict(name='resize', crop=dict(name='resize'))",
    "ml_collections.ConfigDict(dict(name='resize', crop=dict(name='resize')))",
  ],
)
@pytest.mark.parametrize(("data", "later"), [
  ("dict(name='digits', crop=shared, test_crop=shared)", "pass"),
  ("ml_collections.ConfigDict(dict(name='digits', crop=shared, test_crop=shared))", "pass"),
  ("dict(name='digits')", "config.data = dict(name='digits', crop=shared, test_crop=shared)"),
  ("dict(name='digits', crop=shared)", "config.data.test_crop = config.data.crop"),
  ("dict(name='digits', parts=[shared, shared], crop=shared, test_crop=shared)", "pass"),
])  # fmt: skip
def test_flag_changes_one_of_two_keys_with_the_same_group(tmp_path, group, data, later):
  file = tmp_path / "shared.py"
  file.write_text(SHARED % (group, data, later))
  for flag in ({"data.test_crop": "centre"}, {"data.test_crop.name": "centre"}):
    edited = flags.load_config(str(file), flag)
    assert (edited.data.crop.name, str(edited.data.test_crop.name), edited.evals.a.data.name) == (
      "resize", "centre", "resize",
    )  # fmt: skip
  edited = flags.load_config(str(file), {"data.test_crop.crop.name": "centre"})
  assert (edited.data.crop.crop.name, str(edited.data.test_crop.crop.name)) == ("resize", "centre")
  if "parts" in data:
    edited = flags.load_config(str(file), {"data.parts[1].name": "centre"})
    assert [str(part["name"]) for part in edited.data.parts] == ["resize", "centre"]
    assert edited.evals.a.data.name == "resize"


@pytest.mark.parametrize("key", ["data.warp", "data.warp.name"])
def test_choice_none_drops_the_keys_of_the_file(key):
  file = str(runs.ROOT / "configs/digits.py")
  assert flags.load_config(file, {}).data.warp.degrees == 15.0
  run = config.resolve(flags.load_config(file, {key: "none"}))
  assert dict(run.data.args["warp"]) == {"name": "none"}
