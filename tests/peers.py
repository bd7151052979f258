"""Imports of Hugging Face's Transformers and timm, which tests compare with vit_jax."""

import functools
import types

import pytest

_KEPT = []  # garbage collection of a library would remove its operators


@functools.cache
def torchvision() -> None:
  """Imports torchvision, which both packages import.

  PyPI provides torchvision for CUDA only. With PyTorch for CPUs its operators do not load, but it requires two of them.
  """
  torch = pytest.importorskip("torch", reason="needs pip install -e '.[test]'")
  try:
    import torchvision
  except RuntimeError:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
      library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
    import torchvision  # noqa: F401


def transformers() -> types.ModuleType:
  """Returns the package, or skips the test if it is not installed."""
  torchvision()
  return pytest.importorskip("transformers", "5", reason="needs pip install -e '.[test]'")


def timm() -> types.ModuleType:
  """Returns the package, or skips the test if it is not installed."""
  torchvision()
  return pytest.importorskip("timm", reason="needs pip install -e '.[test]'")
