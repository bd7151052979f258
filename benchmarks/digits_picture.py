"""Draws a finished digits run: python -m benchmarks.digits_picture --workdir=runs/digits --out=docs/digits.png

The left panel shows the accuracy during the run, from metrics.jsonl. The right panel shows test images with label and
prediction, mistakes first.
"""

import contextlib
import json
import pathlib
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from vit_jax import checkpoints, cli, models, runtime, schema
from vit_jax.data import catalog
from vit_jax.inference import stored
from vit_jax.parallel import sharding
from vit_jax.schema import format_amount
from vit_jax.training import build


def load_predictions(workdir: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns images, labels and predicted classes of the test split, from the run's last checkpoint.

  Raises:
    ConfigError: `workdir` does not contain a run, or the run has no checkpoint.
  """
  run = stored.load_run(workdir)
  if run is None:
    raise schema.ConfigError(f"--workdir: {workdir} contains no run (no config.json). Train one first: make digits")
  parts = build.build(run, jax.devices())
  with contextlib.closing(
    checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(parts.mesh), read_only=True)
  ) as store:
    if (restored := store.restore(parts.state_shapes)) is None:
      raise schema.ConfigError(f"--workdir: {workdir} has no checkpoint yet. Wait for the first one, or start the run")
    state, _ = restored
  source = catalog.open_split(run.data, "test")
  examples = run.data.eval_examples(source)
  with contextlib.closing(run.data.batches(examples, len(source), range(len(source)))) as batches:
    batch = next(batches)
  model = models.make_functional(models.Description(run.model, run.data.image_size, len(source.classes)))
  images = run.data.normalise(batch["image"])
  output, _ = jax.jit(model.outputs)(state.params, images)
  return batch["image"], batch["label"], np.asarray(output.logits.argmax(-1))


def draw_curves(axes: Any, workdir: pathlib.Path) -> None:
  """Draws top-1 over epochs.

  Args:
    axes: axes of matplotlib.
    workdir: workdir of the run.

  Raises:
    ConfigError: the run has no metrics of training and of the test split yet.
  """
  file = workdir / "metrics.jsonl"
  lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
  train = [line for line in lines if "train/loss" in line]
  test = [line for line in lines if "test/top1" in line]
  if not (train and test):
    raise schema.ConfigError(f"--workdir: {workdir} has no evaluation of the test split yet. Wait until it is trained")
  epoch_of = {line["step"]: line["train/epoch"] for line in train}
  last = train[-1]["train/epoch"] / train[-1]["step"]
  axes.plot([line["train/epoch"] for line in train], [line["train/top1"] for line in train], label="train, augmented")
  test_epochs = [epoch_of.get(line["step"], line["step"] * last) for line in test]
  axes.plot(test_epochs, [line["test/top1"] for line in test], "o-", label="test")
  axes.set(xlabel="epoch", ylabel="top-1", title=f"test top-1 {test[-1]['test/top1']:.2%}", ylim=(0, 1.02))
  axes.legend(loc="lower right")


def draw_gallery(
  axes: Any, images: np.ndarray, labels: np.ndarray, guesses: np.ndarray, count: int = 32, columns: int = 8
) -> None:
  """Draws a grid of images with labels, mistakes first. Mistakes also show the prediction.

  Args:
    axes: axes of matplotlib.
    images: images (N, H, W, C), uint8.
    labels: labels (N,).
    guesses: predicted classes (N,).
    count: number of images to show.
    columns: number of columns.
  """
  order = np.argsort(labels == guesses, kind="stable")[:count]
  tile = images.shape[1]
  canvas = np.full((count // columns * (tile + 14), columns * (tile + 4)), 255, np.uint8)
  for place, i in enumerate(order):
    top, left = place // columns * (tile + 14), place % columns * (tile + 4)
    canvas[top : top + tile, left : left + tile] = 255 - images[i, :, :, 0]
    wrong = labels[i] != guesses[i]
    text = f"{labels[i]}, not {guesses[i]}" if wrong else str(labels[i])
    axes.text(
      left + tile / 2, top + tile + 5, text, ha="center", va="center", fontsize=7, color="crimson" if wrong else "black"
    )
  axes.imshow(canvas, cmap="gray", vmin=0, vmax=255)
  axes.set_title(
    f"{format_amount(int((labels != guesses).sum()), 'mistake')} of {len(labels)}, and some that are right"
  )
  axes.axis("off")


def main() -> None:
  """Writes the picture."""
  parser = cli.Parser("benchmarks.digits_picture", __doc__)
  parser.add_argument("--workdir", required=True, type=pathlib.Path)
  parser.add_argument("--out", required=True, type=pathlib.Path)
  args = parser.parse_args()
  runtime.start()
  predicted = load_predictions(args.workdir)
  figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(1, 1.5), layout="constrained")
  draw_curves(left, args.workdir)
  draw_gallery(right, *predicted)
  args.out.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
  cli.run_verb(main)
