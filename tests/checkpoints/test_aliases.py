"""Tests that checkpoints work below a folder of any name, or raise an error before anything is written."""

import contextlib
import os
import pathlib

import numpy as np
import pytest
from etils import epath

from tests.checkpoints.test_store import make_mesh, same, shapes_of, state
from vit_jax import checkpoints
from vit_jax.checkpoints import aliases
from vit_jax.parallel import sharding
from vit_jax.schema import ConfigError

# Names with characters that have a meaning in Orbax, TensorStore, etils, fsspec or a shell.
NAMES = [
  "runs[1]", "[!a]", "[", "a]b[", "back\\slash", "end\\", "st*r", "**", "wh?t", "{a,b}", "sp ace", " ", "gs:", "logs:",
  "s3:", "file:", "c:d", "a:b@c#d", "it's", 'a"b', "new\nline", "tab\t", "\x01", "%2F", "#1", "a#b", "~", "$HOME",
  "a|b", "a||b", "^", "-x", "...", "a..b", "caf\u00e9", "cafe\u0301", "\u2028", "\U0001f642", "x" * 255,
  "\u00e9" * 127,
]  # fmt: skip


def saved(workdir, *numbers, **options):
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), **options)
  with contextlib.closing(store):
    for number in numbers:
      store.save(number, state(number, make_mesh(1)), {"step": number})


@pytest.mark.sample(4)
@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_workdir_of_any_name_is_saved_restored_and_read(tmp_path, name):
  workdir = tmp_path / "in" / name / "run"
  saved(workdir, 1, 2, 3)
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["2", "3"]
  assert os.listdir(tmp_path / "in") == [name]  # no library created a folder with a changed name
  with contextlib.closing(
    checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), read_only=True)
  ) as store:
    restored, about = store.restore(shapes_of(state(3, make_mesh(1))))
  assert same(restored, state(3, make_mesh(1))) and about == {"step": 3}
  arrays, about = checkpoints.read_weights(workdir)
  assert (
    about == {"step": 3}
    and checkpoints.read_description(workdir) == {"step": 3}
    and checkpoints.describe_damage(str(workdir)) == ""
  )
  assert {path: array.tobytes() for path, array in arrays.items()} == {
    path: np.asarray(array).tobytes() for path, array in state(3, make_mesh(1)).params.items()
  }


@pytest.mark.heavy
def test_path_with_dots_after_a_link_is_resolved_by_the_system(tmp_path):
  (tmp_path / "far/away").mkdir(parents=True)
  (tmp_path / "link").symlink_to(tmp_path / "far/away")
  saved(tmp_path / "link/../run", 1)
  assert sorted(os.listdir(tmp_path)) == ["far", "link"]
  assert checkpoints.read_description(tmp_path / "far/run") == {"step": 1}
  assert set(checkpoints.read_weights(tmp_path / "far/run")[0]) == set(state(1, make_mesh(1)).params)


@pytest.mark.heavy
def test_path_near_the_length_limit_is_saved_and_read(tmp_path):
  workdir = tmp_path.joinpath(*["d" * 200] * 19)
  workdir = workdir / ("e" * (4060 - len(os.fsencode(workdir)) - len("/checkpoints") - 1))
  saved(workdir, 1)
  assert checkpoints.read_description(workdir) == {"step": 1}
  assert set(checkpoints.read_weights(workdir)[0]) == set(state(1, make_mesh(1)).params)


@pytest.mark.parametrize("name", ["plain", "caf\u00e9 +=@,~-_.", "a/b"])
def test_plain_name_is_used_without_an_alias(tmp_path, name):
  (tmp_path / name).mkdir(parents=True)
  with aliases.alias_folder(tmp_path / name) as folder:
    assert folder == tmp_path / name


def test_other_name_is_used_by_its_open_folder_which_is_closed_later(tmp_path):
  (tmp_path / "a[1]").mkdir()
  before = len(os.listdir("/proc/self/fd"))
  with aliases.alias_folder(tmp_path / "a[1]") as folder:
    (folder / "file").write_text("text")
    assert folder.parent == pathlib.Path("/proc/self/fd")
  assert (tmp_path / "a[1]/file").read_text() == "text"
  assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("character", "[]*?#\\\"'\n\u2028{}|<>")
def test_ambiguous_character_in_a_bucket_path_is_an_error(character):
  with pytest.raises(ConfigError, match="cannot be saved under a name with"):
    aliases.check_workdir_name(epath.Path(f"gs://bucket/run{character}1/a"))
  aliases.check_workdir_name(epath.Path("gs://bucket/sweep 1/caf\u00e9/lr=0.1,b:2@x+y~z_-."))


def test_special_names_are_an_error_on_systems_without_open_folders(tmp_path, monkeypatch):
  monkeypatch.setattr(aliases, "_OPEN_FOLDERS", tmp_path / "none")
  aliases.check_workdir_name(tmp_path / "plain")
  with pytest.raises(ConfigError, match="on this system checkpoints can only be saved below a path of letters"):
    aliases.check_workdir_name(tmp_path / "a[1]")
