"""Fixtures with the original codes' logits, and their weights under this project's paths. Read by the model tests."""

import json
import pathlib
import re
import zlib

import numpy as np
import pytest
from flax import nnx

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "parity"


def array_file(name):
  """The named .npz of the shared folder, or a skip where the folder is absent."""
  if not FOLDER.is_dir():
    pytest.skip(f"no parity fixtures at {FOLDER}")
  return np.load(FOLDER / name)


def fixture(name):
  """The description of a published model, its images [B, H, W, C] and its arrays by published name."""
  if not FOLDER.is_dir():
    pytest.skip(f"no parity fixtures at {FOLDER}")
  described = json.loads((FOLDER / "models" / f"{name}.json").read_text())
  arrays = {t["name"]: _array(t) for t in described["tensors"]}
  images = np.random.default_rng(described["input"]["seed"])
  images = images.standard_normal(tuple(described["input"]["shape"]), dtype=np.float32)
  if described["input"]["layout"] == "NCHW":
    images = images.transpose(0, 2, 3, 1)
  return described, images, arrays


def _array(tensor):
  shape = tuple(tensor["shape"])
  if tensor.get("rule") == "sine_1d":
    # Handing out noise shows that a model with a fixed table does not read the stored one.
    return np.full(shape, np.nan, np.float32)
  z = np.random.default_rng(zlib.crc32(tensor["name"].encode())).standard_normal(shape, dtype=np.float32)
  return np.float32(tensor["mean"]) + np.float32(tensor["std"]) * z


def load(model, arrays):
  """Puts arrays by path into a model; paths and shapes must be exactly the model's."""
  state = dict(nnx.to_flat_state(nnx.state(model)))
  paths = {"/".join(map(str, path)): path for path in state}
  assert sorted(paths) == sorted(arrays)
  for name, path in paths.items():
    assert state[path].shape == arrays[name].shape, name
    state[path] = state[path].replace(np.ascontiguousarray(arrays[name]))
  nnx.update(model, nnx.from_flat_state(list(state.items())))
  return model


def _torch_block(arrays, old, new, names, heads):
  """One encoder block of a torch state dict; `names` are those of (norm, attention, norm, up, down)."""
  norm1, attention, norm2, up, down = (f"{old}.{name}" for name in names)
  found = {}
  for layer, name in ((norm1, "norm1"), (norm2, "norm2")):
    found[f"{new}/{name}/scale"], found[f"{new}/{name}/bias"] = arrays[f"{layer}.weight"], arrays[f"{layer}.bias"]
  for layer, name in ((up, "mlp/up"), (down, "mlp/down")):
    found[f"{new}/{name}/kernel"], found[f"{new}/{name}/bias"] = arrays[f"{layer}.weight"].T, arrays[f"{layer}.bias"]
  width = arrays[f"{attention}.proj.bias"].size
  packed = arrays[f"{attention}.qkv.weight"].reshape(3, heads, width // heads, width).transpose(0, 3, 1, 2)
  found |= {f"{new}/attention/{part}/kernel": packed[i] for i, part in enumerate(("query", "key", "value"))}
  found[f"{new}/attention/out/kernel"] = arrays[f"{attention}.proj.weight"].T.reshape(heads, -1, width)
  found[f"{new}/attention/out/bias"] = arrays[f"{attention}.proj.bias"]
  return found


def compact(arrays, depth, heads, fixed):
  """Compact-Transformers' state dict; a table called `fixed` is left out."""
  found = {}
  for i in range(depth):
    names = ("pre_norm", "self_attn", "norm1", "linear1", "linear2")
    found |= _torch_block(arrays, f"classifier.blocks.{i}", f"blocks/{i}", names, heads)
  convolutions = sorted(name for name in arrays if re.fullmatch(r"tokenizer\.conv_layers\.\d\.0\.weight", name))
  patches = "tokenizer.conv_layers.0.0.bias" in arrays
  for i, name in enumerate(convolutions):
    found["embedding/kernel" if patches else f"embedding/convolutions/{i}/kernel"] = arrays[name].transpose(2, 3, 1, 0)
  if patches:
    found["embedding/bias"] = arrays["tokenizer.conv_layers.0.0.bias"]
  if "classifier.class_emb" in arrays:
    found["cls"] = arrays["classifier.class_emb"][0, 0]
  else:
    found["pool/score/kernel"] = arrays["classifier.attention_pool.weight"].T
    found["pool/score/bias"] = arrays["classifier.attention_pool.bias"]
  if not fixed:
    found["position/table"] = arrays["classifier.positional_emb"][0]
  found["norm/scale"], found["norm/bias"] = arrays["classifier.norm.weight"], arrays["classifier.norm.bias"]
  found["head/kernel"], found["head/bias"] = arrays["classifier.fc.weight"].T, arrays["classifier.fc.bias"]
  return found


_GOOGLE = (  # both generations of names, vision_transformer's and big_vision's
  (r"^params/", ""),
  (r"^Transformer/encoderblock_(\d+)/", r"blocks/\1/"),
  (r"^Transformer/encoderblock/", "blocks/"),
  (r"^MAPHead_0/", "pool/"),
  (r"^pool/LayerNorm_0/", "pool/norm/"),
  (r"LayerNorm_0/", "norm1/"),
  (r"LayerNorm_[12]/", "norm2/"),
  (r"MultiHeadDotProductAttention_[01]/", "attention/"),
  (r"MlpBlock_[03]/Dense_0/", "mlp/up/"),
  (r"MlpBlock_[03]/Dense_1/", "mlp/down/"),
  (r"^Transformer/encoder_norm/", "norm/"),
  (r"^(Transformer/posembed_input/)?pos_embedding$", "position/table"),
)


def google(arrays):
  """vision_transformer's and big_vision's arrays."""
  found = {}
  for name, array in arrays.items():
    for pattern, replacement in _GOOGLE:
      name = re.sub(pattern, replacement, name)
    found[name] = array.reshape(array.shape[1:]) if name == "position/table" else array
    if name in ("cls", "pool/probe"):
      found[name] = array.reshape(-1)
  return found
