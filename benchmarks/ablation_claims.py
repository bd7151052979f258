"""Ablations of configs/ablations: names of their settings, and the claims that their results are tested for.

ViT is arXiv:2010.11929, CCT is arXiv:2104.05704 and ViT-5 is arXiv:2602.08071. Claims with the source `OWN` are
questions of this project.
"""

from typing import NamedTuple

HIGHER, EQUAL = "higher", "equal"
OWN = "own"


class Claim(NamedTuple):
  """An expected difference between settings.

  Attributes:
    text: the claim.
    source: paper and section, or `OWN`.
    first: names of settings with plus, joined by " + ".
    second: names of settings with minus, joined by " + ".
    direction: `HIGHER` if the first sum is expected to be higher, `EQUAL` if both sums are expected to be equal.
  """

  text: str
  source: str
  first: str
  second: str
  direction: str = HIGHER


class Ablation(NamedTuple):
  """A sweep and its claims.

  Attributes:
    settings: names of the settings, in the order of the sweep.
    claims: the claims.
    groups: groups of settings from which `val` selects one. The name of a setting starts with the name of its group. In
      a claim, the name of a group denotes the selected setting.
  """

  settings: tuple[str, ...]
  claims: tuple[Claim, ...]
  groups: tuple[str, ...] = ()


def _cross(rows: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the names of all combinations. The last name changes fastest."""
  return tuple(f"{row}, {column}" for row in rows for column in columns)


RATES = tuple(f"rate {rate}" for rate in (0.001, 0.003, 0.005, 0.01, 0.02))
SIZES = tuple(f"{count} images" for count in ("144", "287", "718", "1,437"))
TARGET_SIZES = tuple(f"{count} images" for count in ("50", "100", "287", "1,437"))
COMPONENTS = (
  "four registers",
  "rotary positions, axial",
  "rotary positions, learned",
  "rotary positions of DINOv3",
  "norms of queries and keys",
  "RMSNorm",
  "SwiGLU, equal number of parameters",
  "layer scale 1e-4",
  "no biases of queries, keys and values",
  "all of ViT-5",
)
ABLATIONS = {  # by the name of the file in configs/ablations
  "positions": Ablation(
    ("no positions", *_cross(("1-D", "2-D"), ("input", "each layer", "shared")), "relative"),
    (
      Claim("1-D positions are better than no positions", "ViT, D.4", "1-D, input", "no positions"),
      Claim("2-D positions are better than no positions", "ViT, D.4", "2-D, input", "no positions"),
      Claim("relative positions are better than no positions", "ViT, D.4", "relative", "no positions"),
      Claim("2-D equals 1-D at the input", "ViT, D.4", "2-D, input", "1-D, input", EQUAL),
      Claim("relative equals 1-D at the input", "ViT, D.4", "relative", "1-D, input", EQUAL),
      Claim("1-D in each layer equals the input", "ViT, D.4", "1-D, each layer", "1-D, input", EQUAL),
      Claim("1-D shared equals the input", "ViT, D.4", "1-D, shared", "1-D, input", EQUAL),
      Claim("2-D in each layer equals the input", "ViT, D.4", "2-D, each layer", "2-D, input", EQUAL),
      Claim("2-D shared equals the input", "ViT, D.4", "2-D, shared", "2-D, input", EQUAL),
    ),
  ),
  "pooling": Ablation(
    _cross(("class token", "mean"), (RATES[0], RATES[1], RATES[3])),
    (
      Claim("both heads are equal at their best rates", "ViT, D.3", "class token", "mean", EQUAL),
      Claim(
        "at 0.003, the class token is better",
        "ViT, D.3",
        "class token, rate 0.003",
        "mean, rate 0.003",
      ),
      Claim("the mean is better at 0.001 than at 0.003", "ViT, D.3", "mean, rate 0.001", "mean, rate 0.003"),
      Claim("class token: 0.003 is better than 0.001", OWN, "class token, rate 0.003", "class token, rate 0.001"),
      Claim("class token: 0.003 is better than 0.01", OWN, "class token, rate 0.003", "class token, rate 0.01"),
      Claim("mean: 0.003 is better than 0.01", OWN, "mean, rate 0.003", "mean, rate 0.01"),
    ),
    groups=("class token", "mean"),
  ),
  "optimizer": Ablation(
    _cross(("AdamW", "Muon"), RATES),
    (
      Claim("Muon is better at the best rates", OWN, "Muon", "AdamW"),
      *(Claim(f"both are equal at {rate}", OWN, f"Muon, {rate}", f"AdamW, {rate}", EQUAL) for rate in RATES[:3]),
      *(Claim(f"Muon is better at {rate}", OWN, f"Muon, {rate}", f"AdamW, {rate}") for rate in RATES[3:]),
    ),
    groups=("AdamW", "Muon"),
  ),
  "seqpool": Ablation(
    _cross(("patches", "convolutions"), ("class token", "SeqPool")),
    (
      *(
        Claim(f"{head}: convolutions are better", source, f"convolutions, {head}", f"patches, {head}")
        for head, source in (("class token", OWN), ("SeqPool", "CCT, 4"))
      ),
      *(
        Claim(f"{tokens}: SeqPool is better", source, f"{tokens}, SeqPool", f"{tokens}, class token")
        for tokens, source in (("patches", "CCT, 4"), ("convolutions", OWN))
      ),
    ),
  ),
  "data_size": Ablation(
    _cross(("patches", "convolutions"), SIZES),
    (
      *(Claim(f"{size}: convolutions are better", OWN, f"convolutions, {size}", f"patches, {size}") for size in SIZES),
      Claim(
        "convolutions with 287 images equal patches with 1,437",
        OWN,
        "convolutions, 287 images",
        "patches, 1,437 images",
        EQUAL,
      ),
      Claim(
        "half of the images suffice for convolutions",
        OWN,
        "convolutions, 718 images",
        "convolutions, 1,437 images",
        EQUAL,
      ),
    ),
  ),
  "tokenizer": Ablation(
    (
      *("patches of 8, 9 tokens", "patches of 4, 36 tokens"),
      *("3 convolutions of 3 x 3, 9 tokens", "2 convolutions of 3 x 3, 36 tokens"),
      *("1 convolution of 3 x 3, 144 tokens", "1 convolution of 7 x 7, 36 tokens"),
    ),
    (
      Claim(
        "2 convolutions of 3 x 3 are better than patches of 4",
        "CCT, 4",
        "2 convolutions of 3 x 3, 36 tokens",
        "patches of 4, 36 tokens",
      ),
      Claim(
        "1 convolution of 7 x 7 is better than patches of 4",
        OWN,
        "1 convolution of 7 x 7, 36 tokens",
        "patches of 4, 36 tokens",
      ),
      Claim(
        "3 convolutions are better than patches of 8",
        OWN,
        "3 convolutions of 3 x 3, 9 tokens",
        "patches of 8, 9 tokens",
      ),
      Claim("smaller patches are better", "CCT, 4", "patches of 4, 36 tokens", "patches of 8, 9 tokens"),
      Claim(
        "144 tokens are better than 36",
        "CCT, 4",
        "1 convolution of 3 x 3, 144 tokens",
        "2 convolutions of 3 x 3, 36 tokens",
      ),
      Claim(
        "1 convolution of 7 x 7 equals 2 of 3 x 3",
        OWN,
        "1 convolution of 7 x 7, 36 tokens",
        "2 convolutions of 3 x 3, 36 tokens",
        EQUAL,
      ),
    ),
  ),
  "shape": Ablation(
    ("1 x 132", "2 x 92", "4 x 64", "8 x 44", "16 x 30"),
    tuple(
      Claim(f"{deep} is better than {wide}", OWN, deep, wide)
      for wide, deep in (("1 x 132", "2 x 92"), ("2 x 92", "4 x 64"), ("4 x 64", "8 x 44"), ("8 x 44", "16 x 30"))
    ),
  ),
  "pretraining": Ablation(
    _cross(("from scratch", "pre-trained"), TARGET_SIZES),
    (
      *(
        Claim(f"{count}: pre-training helps", OWN, f"pre-trained, {count}", f"from scratch, {count}")
        for count in TARGET_SIZES
      ),
      Claim(
        "the gain is larger with 50 images than with 1,437",
        OWN,
        "pre-trained, 50 images + from scratch, 1,437 images",
        "from scratch, 50 images + pre-trained, 1,437 images",
      ),
    ),
  ),
  "block": Ablation(
    ("plain", *COMPONENTS),
    (
      *(
        Claim(f"{name}: better than plain", "ViT-5" if name == COMPONENTS[-1] else OWN, name, "plain")
        for name in COMPONENTS
      ),
      Claim("all of ViT-5 equals axial positions alone", OWN, "all of ViT-5", "rotary positions, axial", EQUAL),
    ),
  ),
}
