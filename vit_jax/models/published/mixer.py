"""Published MLP-Mixers: sizes, and the names of Google and timm."""

from vit_jax.models.published.model import make_published

SIZES = {  # width, depth, hidden of the token MLP, hidden of the channel MLP: one row is one model
  "S": (512, 8, 256, 2048),
  "B": (768, 12, 384, 3072),
  "L": (1024, 24, 512, 4096),
  "H": (1280, 32, 640, 5120),
}
# Google trained with the tanh form of GELU. The models with timm's names compute the erf form for the same weights.
VARIANTS = {  # name -> size, patch, gelu
  **{f"Mixer-{size}/{patch}": (size, patch, "tanh") for size in "SBL" for patch in (32, 16)},
  "Mixer-H/14": ("H", 14, "tanh"),
  **{f"mixer_{size.lower()}{patch}_224": (size, patch, "erf") for size in "SBL" for patch in (32, 16)},
}

NAMES = {
  name: make_published("mixer:mixer", SIZES[size], patch, gelu=gelu) for name, (size, patch, gelu) in VARIANTS.items()
}
