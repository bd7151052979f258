"""Weight files and JSON files next to them that are damaged, false or malicious. Each must raise one short error.

Each function writes into an empty folder and returns the path that a user would name. `tests/importers/test_hostile.py`
reads the files in one process. `tests.campaigns.files` reads them with the verbs and measures time and memory.
"""

import io
import json
import os
import pathlib
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.models import Description
from vit_jax.schema import Choice

ESCAPE = "\x1b]0;owned\x07\x1b[2J\nerror: nothing is wrong\n"  # sequences that a terminal would execute
DEEP = "[" * 200_000
SIZES = {"width": 64, "depth": 2, "heads": 2, "hidden": 96}
GOOD: dict[str, dict[str, np.ndarray]] = {}


def good(name: str = "timm") -> dict[str, np.ndarray]:
  """Returns tensors of a small ViT under the names of a layout."""
  if name not in GOOD:
    described = Description(Choice("ViT-S/8", SIZES | ({"gelu": "erf", "eps": 1e-12} if name == "hf" else {})), 32, 3)
    arrays = {path: np.full(shape, 0.1, np.float32) for path, shape in layout.compute_shapes(described).items()}
    GOOD[name] = importers.export_tensors(arrays, described, name)
  return GOOD[name]


# .npz


def npy(descr: str, shape: str, data: bytes = b"", version: int = 1) -> bytes:
  """Returns an array in NumPy's format with any header."""
  text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode("latin1")
  return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED, claimed: int | None = None) -> bytes:
  """Returns an archive. Its directory states that the last member has `claimed` bytes."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", compression) as archive:
    for name, data in members.items():
      archive.writestr(name, data)
    if claimed is not None:
      archive.filelist[-1].file_size = claimed
  return file.getvalue()


def npz(descr: str, shape: str, data: bytes = b"", version: int = 1, **options) -> Callable:
  """Returns a function that packs one such array with the arrays of a valid model."""
  return lambda: packed({"head/bias.npy": npy(descr, shape, data, version)}, **options)


def saved(**changes) -> bytes:
  file = io.BytesIO()
  np.savez(file, **good("vit_jax") | changes)
  return file.getvalue()


def bomb() -> bytes:
  """Returns a head of 62.5 million classes in a few kilobytes. Header and archive both state 4 GB."""
  head = npy("'<f4'", "(16, 62500000)")
  return packed({"head/kernel.npy": head}, zipfile.ZIP_DEFLATED, len(head) + 4 * 16 * 62_500_000)


def padded(size: int) -> Callable:
  """Returns a function that makes a header of `size` spaces. A MiB of spaces is compressed to a KiB."""

  def make():
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    parts = b"\x93NUMPY\2\0" + struct.pack("<I", size), b" " * 2**20
    start, spaces = (stream.compress(part) + stream.flush(zlib.Z_FULL_FLUSH) for part in parts)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
      archive.writestr("head/bias.npy", start + spaces * (size // 2**20) + stream.flush())
      archive.filelist[0].compress_type, archive.filelist[0].file_size = zipfile.ZIP_DEFLATED, size + 12
    return file.getvalue()

  return make


NPZ = {
  "no bytes": lambda: b"",
  "half of a file": lambda: saved()[:-1000],
  "a directory alone": lambda: saved()[-300:],
  "no array in it": lambda: packed({"a.npy": b"no array"}),
  "10^15 rows": npz("'<f4'", "(1000000000000000,)"),
  "10^15 rows of nothing": npz("'<U0'", "(1000000000000000,)"),
  "10^30 rows": npz("'<f4'", f"({10**30},)"),
  "no rows of 10^30": npz("'<f4'", f"(0, {10**30})"),
  "rows below zero": npz("'<f4'", "(-1, -1)", b"1234"),
  "rows of 5,000 digits": npz("'<f4'", f"({'9' * 5000},)"),
  "rows that are true": npz("'<f4'", "(True,)", b"1234"),
  "structured": npz("[('a', '<f4'), ('b', '<i4')]", "(1,)", b"12345678"),
  "bytes without a type": npz("'|V8'", "(1,)", b"12345678"),
  "arrays inside": npz("('<f4', (1000000, 1000000))", "(1,)", b"1234"),
  "objects": npz("'|O'", "(1,)", pickle.dumps(os.getcwd)),
  "dates": npz("'<M8[s]'", "(1,)", b"12345678"),
  "an unknown type": npz("'<q9'", "(1,)", b"1234"),
  "a header of brackets": npz("'<f4'", "(" * 4000),
  "a header of code": npz("__import__('os').system('touch owned')", "(1,)", b"1234"),
  "an unfinished header": npz("'<f4", "(1,)", b"1234"),
  "version 3": npz("'<f4'", "(1,)", b"1234", version=3),
  "a zip bomb": bomb,
  "a header of 200 MiB": padded(200 * 2**20),
  "a header of 400 MiB": padded(400 * 2**20),
  "another compression": npz("'<f4'", "(1,)", b"1234", compression=zipfile.ZIP_LZMA),
  "too many members": lambda: packed({f"{i}.npy": b"" for i in range(10_001)}),
  "whole numbers": lambda: saved(**{"head/bias": np.zeros(3, np.int64)}),
  "complex numbers": lambda: saved(**{"head/bias": np.zeros(3, np.complex64)}),
  "texts": lambda: saved(**{"head/bias": np.array(["a", "b", "c"])}),
  "names that terminals obey": lambda: saved(**{ESCAPE: np.zeros(3, np.float32)}),
  "a name of 60,000 characters": lambda: saved(**{"n" * 60_000: np.zeros(3, np.float32)}),
}  # fmt: skip


# .safetensors


def tensors(header, data: bytes = b"", length: int | None = None) -> Callable:
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return lambda: struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start: int, end: int, shape=(1,), kind: str = "F32") -> dict:
  return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


def numbered(name: str) -> Callable:
  """Returns a function that makes valid tensors and one tensor with a huge layer number."""
  return tensors({name: entry(0, 4), "head.bias": entry(4, 8)}, b"12345678")


def make_described(value) -> Callable:
  """Returns a function that makes valid tensors with a vit_jax description in the header."""

  def make():
    from safetensors.numpy import save

    return save(good(), {"vit_jax": value if isinstance(value, str) else json.dumps(value)})

  return make


MODEL = {"model": {"name": "ViT-S/8", **SIZES}, "image_size": 32, "classes": 3, "channels": 3}
SAFETENSORS = {
  "no bytes": lambda: b"",
  "a header of 2^63 bytes": tensors({}, length=2**63),
  "a header of 1 GB": tensors({}, length=2**30),
  "a header beyond the end": tensors({}, length=100),
  "a header of brackets": tensors(b'{"a":' + DEEP.encode()),
  "a header that is no UTF-8": tensors(b"\xff" * 64),
  "a header that is a list": tensors([1]),
  "no tensors": tensors({}),
  "offsets that overlap": tensors({"a": entry(0, 8, (2,)), "b": entry(4, 12, (2,))}, b"123456789012"),
  "offsets beyond the end": tensors({"a": entry(0, 4 * 10**12, (10**12,))}, b"1234"),
  "offsets below zero": tensors({"a": entry(-4, 0)}, b"1234"),
  "offsets backwards": tensors({"a": entry(4, 0)}, b"1234"),
  "a shape that overflows": tensors({"a": entry(0, 4, (2**62, 2**62))}, b"1234"),
  "no values of 2^60 columns": tensors({"head.bias": entry(0, 0, (0, 2**60))}),
  "an unknown type": tensors({"a": entry(0, 4, kind="F8_E4M3")}, b"1234"),
  "names that terminals obey": tensors({ESCAPE: entry(0, 4)}, b"1234"),
  "a layer too many of Swin": numbered("layers.999999999.blocks.0.attn.relative_position_bias_table"),
  "a layer too many of EfficientNet": numbered("blocks.999999999.0.conv_dw.weight"),
  "described by brackets": make_described("[" * 5000),
  "described by no JSON": make_described("{"),
  "described by a number": make_described(3),
  "images of a number": make_described(MODEL | {"use": 3}),
  "images of a crop that is none": make_described(MODEL | {"use": {"test_crop": {"name": ESCAPE}}}),
  "images of classes that are numbers": make_described(MODEL | {"use": {"classes": [1]}}),
  "images of 1e400 pixels": make_described(MODEL | {"use": {"image_size": 1e400}}),
  "described by an unknown model": make_described(MODEL | {"model": {"name": ESCAPE * 100}}),
  "described by a huge model": make_described(MODEL | {"model": {"name": "ViT-S/8", "depth": 10**9}}),
  "described with 1e400 classes": make_described(MODEL | {"classes": 1e400}),
  "described by texts": make_described(MODEL | {"image_size": "32"}),
  "described as another model": make_described(MODEL | {"model": {"name": "cct_7_3x1_32"}}),
}


# .pth: made by PyTorch if it is installed.


def torch_file(make: Callable, **options) -> Callable:
  """Returns a function that saves `make(torch)` with `torch.save` and returns the bytes."""

  def data():
    import torch

    file = io.BytesIO()
    torch.save(make(torch), file, **options)
    return file.getvalue()

  return data


def cycle(torch):
  loop: dict = {}
  loop["model"] = loop
  return loop


def chain(torch):
  inside: dict = {"head.bias": torch.zeros(1)}
  for _ in range(100):
    inside = {"model": inside}
  return inside


class Attack:
  """An object that would create a file in the current folder when it is unpickled."""

  def __reduce__(self):
    return open, ("owned", "w")


def compressed() -> bytes:
  with zipfile.ZipFile(io.BytesIO(torch_file(lambda torch: {"head.bias": torch.zeros(1000)})())) as archive:
    return packed({name: archive.read(name) for name in archive.namelist()}, zipfile.ZIP_DEFLATED)


TORCH = {
  "no bytes": lambda: b"",
  "half of a file": lambda: torch_file(lambda torch: {"head.bias": torch.zeros(1000)})()[:-500],
  "half of an old file": lambda: torch_file(
    lambda torch: {"head.bias": torch.zeros(1000)}, _use_new_zipfile_serialization=False
  )()[:-500],
  "a cycle": torch_file(cycle),
  "a hundred wrappers": torch_file(chain),
  "a list": torch_file(lambda torch: [1, 2]),
  "a number": torch_file(lambda torch: 3),
  "a value seen 10^12 times": torch_file(lambda torch: {"head.bias": torch.zeros(1).expand(10**12)}),
  "a value seen 100 million times": torch_file(lambda torch: {"head.bias": torch.zeros(1).expand(10**8)}),
  "a sparse tensor": torch_file(lambda torch: {"head.bias": torch.sparse_coo_tensor([[1]], [1.0], (10**9,))}),
  "complex numbers": torch_file(lambda torch: {"head.bias": torch.zeros(3, dtype=torch.complex64)}),
  "code": lambda: pickle.dumps({"head.bias": Attack()}),
  "code of torch's": torch_file(lambda torch: {"head.bias": Attack()}),
  "compressed members": compressed,
  "brackets": lambda: b"\x80\x02" + b"]" * 20_000 + b".",
  "a text": lambda: ESCAPE.encode() * 100,
}

WEIGHTS = {
  f"{suffix}: {name}": (f"weights.{suffix}", make)
  for suffix, table in (("npz", NPZ), ("safetensors", SAFETENSORS), ("pth", TORCH))
  for name, make in table.items()
}


# Files next to weights.

HUB = {
  "brackets": DEEP,
  "objects inside of objects": '{"a":' * 900 + "1" + "}" * 900,
  "no UTF-8": b"\xff{}",
  "a list": [1],
  "longer than any": b"[" + b" " * (2**24 + 1) + b"]",
  **{
    f"hidden_act {name}": {"hidden_act": name}
    for name in ("relu", "quick_gelu", "silu", "selu", "gelu_10", 3, ["gelu"])
  },
  **{f"{heads!r} heads": {"num_attention_heads": heads} for heads in (0, -2, "2", True, 2.0, 1e400, [2], 10**30)},
  "another width": {"hidden_size": 128},
  "another depth": {"num_hidden_layers": 3},
  "an intermediate size that is a text": {"intermediate_size": "96"},
  "another patch": {"patch_size": 16},
  "another image": {"image_size": 64},
  "an image of texts": {"image_size": "32"},
  **{f"layer_norm_eps {eps!r}": {"layer_norm_eps": eps} for eps in (0, -1e-6, "1e-6", True, float("nan"), 10)},
  "no bias": {"qkv_bias": False},
  "another pooler": {"pooler_act": "relu"},
  "another pooling": {"architecture": "vit_small_patch8_224", "global_pool": "avg"},
  "an unknown pooling": {"global_pool": ESCAPE},
  "an unknown argument": {"model_args": {"norm_layer": "rmsnorm"}},
  "arguments that are a list": {"model_args": ["act_layer"]},
  "another activation of timm's": {"model_args": {"act_layer": "quick_gelu"}},
  "a mean that is a text": {"pretrained_cfg": {"mean": "0.5"}},
  "a deviation of zero": {"pretrained_cfg": {"std": [0, 0, 0]}},
}


def weights(into: pathlib.Path, name: str) -> pathlib.Path:
  """Writes the hostile weights of that name, and returns the path for a verb."""
  file, make = WEIGHTS[name]
  (into / file).write_bytes(make())
  return into / file


def hub(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Writes valid weights with a hostile config.json next to them."""
  from safetensors.numpy import save_file

  value = HUB[name]
  save_file(good("hf"), folder / "model.safetensors")
  data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
  (folder / "config.json").write_bytes(data)
  return folder
