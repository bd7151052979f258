"""Addresses of published weight files that can be recognised by their names."""

import re

# Pattern of a file name, and its address. `{0}` is the file name, and `{1}` the first group of the pattern.
ADDRESSES = (
  (r"(dinov2_vit[sblg]14)(?:_reg4)?_pretrain\.pth", "https://dl.fbaipublicfiles.com/dinov2/{1}/{0}"),
  (r"deit_\w+-[0-9a-f]{8}\.pth", "https://dl.fbaipublicfiles.com/deit/{0}"),
  (
    r"(?:Ti|S|B|L|R_Ti|R26_S|R50_L)_\d+-\S+-sd_[\d.]+(?:--\S+)?\.npz",
    "https://storage.googleapis.com/vit_models/augreg/{0}",
  ),
  (r"BiT-[SM]-R\d+x\d(?:-ILSVRC2012)?\.npz", "https://storage.googleapis.com/bit_models/{0}"),
)


def find_address(name: str) -> str | None:
  """Returns the address of a published file, or None if the name does not determine it.

  Args:
    name: name of the file, without a folder.
  """
  for pattern, address in ADDRESSES:
    if match := re.fullmatch(pattern, name):
      return address.format(name, *match.groups())
  return None
