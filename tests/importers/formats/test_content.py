"""Tests of vit_jax/importers/formats/content.py, which finds a file's format by its first bytes and its name."""

import io
import tarfile

import numpy as np
import pytest
import safetensors.numpy

from vit_jax.importers.formats import containers
from vit_jax.schema import ConfigError

ARRAY = np.arange(3, dtype=np.float32)


def make_file(kind: str) -> bytes:
  """Returns the bytes of a file with one array `a` in a format."""
  if kind == ".safetensors":
    return safetensors.numpy.save({"a": ARRAY})
  file = io.BytesIO()
  if kind == ".npz":
    np.savez(file, a=ARRAY)
  else:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.tensor(ARRAY)}, file, _use_new_zipfile_serialization=kind == ".pth")
  return file.getvalue()


NAMES = [
  *("model_best.pth.tar", "checkpoint-3.PTH.TAR", "x.pth", "x.pt", "x.bin", "x.ckpt", "x.pth.zip"),
  *("last.tar", "x.model", "x.pkl", "x.h5", "0f3a9c", "epoch=3-step=10"),
]


@pytest.mark.parametrize("kind", [".pth", "old .pth"])
@pytest.mark.parametrize("name", NAMES)
def test_pytorch_files_are_recognised_by_their_content(tmp_path, name, kind):
  (tmp_path / name).write_bytes(make_file(kind))
  tensors, _ = containers.read(tmp_path / name)
  assert list(tensors) == ["a"]
  np.testing.assert_array_equal(np.asarray(tensors["a"]), ARRAY)


@pytest.mark.parametrize(
  ("name", "kind", "message"),
  [
    ("x.npz", ".safetensors", "the content is that of a .safetensors file. Rename it to end in .safetensors"),
    ("x.npz", ".pth", "the content is that of a PyTorch file. Rename it to end in .pth"),
    ("x.safetensors", ".npz", "the content is that of an .npz file. Rename it to end in .npz"),
    ("x.safetensors", "old .pth", "the content is that of a PyTorch file. Rename it to end in .pth"),
    ("x.pth", ".npz", "the content is that of an .npz file. Rename it to end in .npz"),
    ("x.pth.tar", ".safetensors", "the content is that of a .safetensors file. Rename it to end in .safetensors"),
    ("0f3a9c", ".safetensors", "the content is that of a .safetensors file. Rename it to end in .safetensors"),
    ("x.model", ".npz", "the content is that of an .npz file. Rename it to end in .npz"),
  ],
)
def test_suffix_that_contradicts_the_content_is_an_error_with_the_fix(tmp_path, name, kind, message):
  path = tmp_path / name
  path.write_bytes(make_file(kind))
  with pytest.raises(ConfigError) as error:
    containers.read(path)
  assert str(error.value) == f"{path}: {message}"
  right = path.with_name(f"y{message.split()[-1]}")
  path.rename(right)
  np.testing.assert_array_equal(np.asarray(containers.read(right)[0]["a"]), ARRAY)


@pytest.mark.parametrize("name", ["model_best.pth.tar", "weights.tar", "x.pth"])
def test_tar_archive_is_an_error_with_the_command_to_unpack_it(tmp_path, name):
  with tarfile.open(tmp_path / name, "w") as archive:
    archive.addfile(tarfile.TarInfo("x.pth"))
  with pytest.raises(ConfigError, match=r"this is a tar archive\. Unpack it with tar -xf"):
    containers.read(tmp_path / name)


def test_misspelled_pth_tar_name_suggests_a_similar_file(tmp_path):
  (tmp_path / "model_best.pth.tar").write_bytes(b"1")
  with pytest.raises(ConfigError, match=r"Did you mean '.*model_best\.pth\.tar'"):
    containers.read(tmp_path / "model_bst.pth.tar")
