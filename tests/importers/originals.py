"""Small models in the file layouts of their authors, converted by hand from timm's tensors: a second table of names."""

import re

import numpy as np

from tests.importers.test_layout import DINOV3, ERF, EVA02, NORMED, TURNED, example
from vit_jax.importers import layout
from vit_jax.models.published import modern


def shown(description):
  """Returns the arguments of a model that can be read from a file, without its sizes.

  Sizes may already be part of another model name. The rule for positions at another resolution depends on the
  publisher and is removed too: see test_resampling.
  """
  sizes = ("layer_scale", "width", "depth", "heads", "hidden", "resampling")
  return {key: value for key, value in description.arguments().items() if key not in sizes}


def timm(arguments, classes, size=32):
  """Returns a description, parameters by path, and tensors by timm's names."""
  written, description, arrays = example("timm", "ViT-S/8", arguments, size, classes)
  return description, arrays, layout.write(written, arrays, description)


def dinov2(registers, mlp, chunk=None):
  """Returns a model with DINOv2's names. The position table has a row for the class token, but none for registers."""
  arguments = ERF | {"layer_scale": 1e-4, "registers": registers, "mlp": mlp}
  description, arrays, tensors = timm(arguments | {"position": "learned_patches"}, 0)
  row = np.random.default_rng(1).standard_normal((1, 1, 64), dtype=np.float32)
  theirs = {"mask_token": np.ones((1, 64), np.float32)}
  for name, array in tensors.items():
    name = name.replace("reg_token", "register_tokens")
    if mlp == "swiglu":
      name = name.replace("fc1", "w12").replace("fc2", "w3")
    if chunk is not None:
      name = re.sub(r"^blocks\.(\d+)", lambda match: f"blocks.{int(match[1]) // chunk}.{match[1]}", name)
    theirs[name] = np.concatenate([row, array], axis=1) if name == "pos_embed" else array
  # The sum of class token and position stays the same.
  theirs["cls_token"] = tensors["cls_token"] - row
  return description, arrays, theirs


def dinov3(qkv_bias, mlp):
  """Returns a model with DINOv3's names: one bias for queries, keys and values, with a mask that removes the keys'."""
  description, arrays, tensors = timm(DINOV3 | {"qkv_bias": qkv_bias, "mlp": mlp}, 0)
  theirs = {"mask_token": np.ones((1, 64), np.float32), "rope_embed.periods": np.ones(8, np.float32)}
  for name, array in tensors.items():
    for ours, other in (("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma")):
      name = name.replace(ours, other)
    if mlp == "swiglu":
      for ours, other in (("fc1_g", "w1"), ("fc1_x", "w2"), ("fc2", "w3")):
        name = name.replace(ours, other)
    if name.endswith("q_bias"):
      name = name.replace("q_bias", "qkv.bias")
      other = tensors[name.replace("qkv.bias", "v_bias")]
      array = np.concatenate([array, np.full(64, 7, np.float32), other])  # the mask removes the keys' part
      theirs[f"{name}_mask"] = np.repeat(np.float32([1, 0, 1]), 64)
    if not name.endswith("v_bias"):
      theirs[name] = array
  return description, arrays, theirs


def eva02(normed, masked=False):
  """Returns a model with EVA-02's names, fine-tuned or from training with masked patches."""
  arguments = EVA02 | NORMED | ({} if normed else {"mlp": "swiglu"})
  description, arrays, tensors = timm(arguments, 0 if masked else 3)
  words = [("fc1_g", "w1"), ("fc1_x", "w2"), ("mlp.norm", "mlp.ffn_ln"), ("q_proj.bias", "q_bias")]
  words += [("v_proj.bias", "v_bias"), ("fc2", "w3"), ("fc1", "w12")]
  theirs = {"rope.freqs_cos": np.ones((16, 32), np.float32), "blocks.0.attn.rope.freqs_sin": np.ones(3, np.float32)}
  for name, array in tensors.items():
    for ours, other in words:
      name = name.replace(ours, other)
    theirs[name.replace("fc_norm", "norm") if masked else name] = array
  if masked:
    theirs |= {"mask_token": np.ones((1, 1, 64), np.float32), "lm_head.weight": np.ones((5, 64), np.float32)}
  return description, arrays, theirs


def rope_vit():
  """Returns a model with rope-vit's names and learned frequencies, with all heads of a layer in one row."""
  description, arrays, tensors = timm(TURNED | {"position": "learned_patches", "rotary": modern.MIXED}, 3)
  frequencies = tensors.pop("rope.freqs")
  theirs = {"freqs": frequencies.reshape(2, 2, 32), "freqs_t_x": np.zeros(16), "freqs_t_y": np.zeros(16)}
  return description, arrays, tensors | theirs
