"""Hugging Face's Transformers and timm, which tests compute beside ours."""

import functools
import types

import pytest

_KEPT = []  # a library of operators that is collected takes them along


@functools.cache
def torchvision() -> None:
  """Imports it, which both do.

  PyPI has it for CUDA only. Beside PyTorch for CPUs its own operators do not load, and it asks for two of them.
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
  """The package; skips the test without it."""
  torchvision()
  return pytest.importorskip("transformers", "5", reason="needs pip install -e '.[test]'")


def timm() -> types.ModuleType:
  """The package; skips the test without it."""
  torchvision()
  return pytest.importorskip("timm", reason="needs pip install -e '.[test]'")
