"""Creates a small folder of photographs to try training on: python examples/photographs.py photos

The folder contains three classes, `china`, `flower` and `hopper`. Each has 45 crops of 64 x 64 pixels in `train` and
11 in `test`. The crops do not overlap. They are cut from three photographs: two from scikit-learn and one from
matplotlib. The script downloads no files. An existing folder is not changed.
"""

import argparse
import pathlib
import sys
from typing import NoReturn

import matplotlib.cbook
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

SIDE, CROPS, EVERY = 64, 56, 5  # pixels; crops per photograph; one crop out of 5 is for test


def photographs() -> dict[str, np.ndarray]:
  """Returns the photographs by class, uint8 (H, W, 3)."""
  hopper = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
  return {
    "china": load_sample_image("china.jpg"),
    "flower": load_sample_image("flower.jpg"),
    "hopper": np.asarray(Image.open(hopper).convert("RGB")),
  }


def main(folder: str) -> None:
  """Writes the folder."""
  root = pathlib.Path(folder)
  if root.exists():
    raise FileExistsError(f"{root}: already exists. Name another folder, or remove it.")
  for name, pixels in photographs().items():
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    for number in range(min(CROPS, rows * columns)):
      top, left = SIDE * (number // columns), SIDE * (number % columns)
      file = root / ("test" if number % EVERY == EVERY - 1 else "train") / name / f"{number:03d}.jpg"
      file.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(pixels[top : top + SIDE, left : left + SIDE]).save(file, quality=95)
  print(f"{root}: {len(list(root.rglob('*.jpg')))} photographs of 3 classes")


class Parser(argparse.ArgumentParser):
  """A parser that reports a mistake in one line, and exits with code 2."""

  def error(self, message: str) -> NoReturn:
    """Prints the message without the usage."""
    self.exit(2, f"error: {message}. Use: python examples/photographs.py FOLDER\n")


if __name__ == "__main__":
  parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", metavar="FOLDER", help="the folder to write; it must not exist")
  try:
    main(parser.parse_args().folder)
  except OSError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
