"""Evaluates frozen features by probes: python -m vit_jax.fewshot --config=fewshot --weights=PATH

PATH is any weight file that `vit_jax.convert` reads, or a workdir. Only the probes are trained. The table contains the
mean top-1 and its standard deviation over the seeds that draw the images. Features are cached under a hash of weights,
preparation and images. If shots, seeds or probes change, only features that are not cached are computed.
The recipe `probes` contains probes on whole splits (nearest neighbours and linear) and the dense probe, which
classifies each pixel.

--json=FILE writes every draw with its figure and the names of the drawn images, and the IoU of each class for a dense
probe. --write-predictions=FILE.csv writes a row for each test image: id, label, and the prediction of each probe.
"""

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax

from vit_jax import cli, config, importers, runtime, schema
from vit_jax.config import flags
from vit_jax.corpora.screen import ProgressScreen
from vit_jax.data import shared_data
from vit_jax.data.images import ImageError
from vit_jax.evals import Outcome, intervals
from vit_jax.evals.dense import DenseDetails as Dense
from vit_jax.evals.fewshot import FewshotDetails as FewShot
from vit_jax.importers import options, pinning
from vit_jax.runtime import print_line
from vit_jax.schema import format_amount
from vit_jax.storage import files
from vit_jax.training import probe_setup


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags and weights, measures, and prints the table.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  parser = cli.Parser("fewshot", __doc__, config_type=config.Measurement)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument("--weights", required=True, help="a file of weights, a workdir or hf:OWNER/NAME")
  parser.add_argument("--json", type=cli.parse_path, metavar="FILE", help="write all figures and draws to this file")
  parser.add_argument("--write-predictions", type=cli.parse_path, metavar="FILE", help="a row for each test image")
  arguments = parser.parse(words)
  for path, suffix in ((arguments.json, ".json"), (arguments.write_predictions, ".csv")):
    if path:
      files.check_path(path, (suffix,))
  measurement = config.resolve(flags.load_config(arguments.config, arguments.overrides), config.Measurement)
  choices = probe_setup.complete(measurement, measurement.image_size)  # errors are raised before the weights are read
  if arguments.write_predictions and (without := [name for name, c in choices.items() if c.name != "fewshot"]):
    raise schema.ConfigError(
      f"--write-predictions: {', '.join(without)} does not predict a class for each image. Remove this flag"
    )

  keeps = any(choice.args.get("cache") for choice in choices.values())
  again = "starts it again" + ", but for the features of splits that are done" * keeps
  with runtime.join_processes(measurement.limits, again) as watch:
    runtime.check_equal_facts({"config": schema.to_plain(measurement), "flags": cli.describe_flags(arguments)})
    with watch.phase("restore"):
      arguments.weights = pinning.pin_flag("--weights", arguments.weights)
      weights = load_weights(arguments.weights, measurement)
      description, arrays, notes = weights.description, weights.arrays, weights.notes
    measured = probe_setup.build(measurement, description, arrays, jax.devices(), screen=start_progress)
    shared_data.check_same_images(measured.splits)
    print_line(f"{arguments.weights}: {description.model.name}")
    for note in (*notes, *measured.notes):
      print_line(f"  {note}")
    outcomes = {}
    for name, evaluation in measured.evals.items():
      try:
        with watch.phase("evaluation"):
          outcomes[name] = evaluation(measured.params, watch.poll)
      except ImageError as error:
        raise schema.ConfigError(str(error)) from error
      details = outcomes[name].details
      if isinstance(details, Dense | FewShot):  # only the first process has details
        for note in dict.fromkeys((details.train.note, details.test.note)):
          runtime.print_note(note)
        (print_dense if isinstance(details, Dense) else print_probes)(name, outcomes[name])
      elif choices[name].name not in ("fewshot", "dense"):
        print_line(f"\n{name}")
        cli.format_figures(outcomes[name].figures)
    if jax.process_index() == 0:
      write_outputs(outcomes, arguments.weights, arguments.json, arguments.write_predictions)


def load_weights(path: str, measurement: config.Measurement) -> importers.Weights:
  """Reads the weights of a file or workdir.

  Args:
    path: the file or workdir.
    measurement: selects averaged weights and one of several models.

  Raises:
    ConfigError: a process cannot read the weights. All processes raise the error.
  """
  weights, problem = None, None
  try:
    with options.use_form("config"):
      weights = importers.read(path, ema=measurement.ema, prefix=measurement.prefix)
  except schema.ConfigError as error:
    problem = f"--weights: {error}"
  runtime.raise_together(problem)
  assert weights is not None, problem
  return weights


def start_progress(split: str, images: int, size: int) -> ProgressScreen:
  """Prints the number of images of a split that must be computed, and returns the progress display.

  Args:
    split: name of the split.
    images: number of images to compute.
    size: batch size.
  """
  print_line(f"  {split}: {format_amount(images, 'image')} to compute, {size} at a time (batch)")
  return ProgressScreen(split, images)


def print_dense(name: str, outcome: Outcome) -> None:
  """Prints the figures of a dense probe and the IoU of each class.

  Args:
    name: name of the evaluation.
    outcome: its result.
  """
  figures, details = outcome.figures, outcome.details
  assert isinstance(details, Dense)
  print_line(
    f"\n{name}: {format_amount(len(details.classes), 'class', 'classes')} of pixels, from "
    f"{format_amount(len(details.train), 'image')} of {details.train.split!r}, {figures['images']:,} of "
    f"{details.test.split!r}"
  )
  print_line(f"  mean IoU {figures['mean_iou']:.2%}, pixels right {figures['pixel_accuracy']:.2%}")
  for label, iou in details.iou.items():
    print_line(f"  {label:<24}" + ("does not occur" if iou is None else f"{iou:8.2%}"))


def print_probes(name: str, outcome: Outcome) -> None:
  """Prints the table of a few-shot evaluation: one line for each probe, one column for each number of shots.

  Args:
    name: name of the evaluation.
    outcome: its result.
  """
  details = outcome.details
  assert isinstance(details, FewShot)
  episodes, train_split, test_split = details.episodes, details.train, details.test
  seeds = len({episode.seed for episode in episodes})
  single = intervals.compute_figure_intervals(outcome.figures)
  shots = {episode.shots: episode.images for episode in episodes}
  drawn = (
    f"all images of {train_split.split!r}"
    if "all" in shots
    else f"drawn from {train_split.split!r} by {format_amount(seeds, 'seed')}"
  )
  print_line(f"\n{name}: {format_amount(len(train_split.classes), 'class', 'classes')}, {drawn}, "
      f"{format_amount(int(outcome.figures['images']), 'image')} of {test_split.split!r}")  # fmt: skip
  print_line(
    f"  {'':<12}"
    + "".join(f"{format_amount(images, 'image') if k == 'all' else f'{k}-shot':>22}" for k, images in shots.items())
  )
  for k, images in shots.items():
    if k != "all" and images < k * len(train_split.classes):
      print_line(
        f"  {k}-shot: some classes have fewer than {format_amount(k, 'image')}; {images:,} are used for training"
      )
  for note in details.notes:
    print_line(f"  {note}")
  for probe in sorted({episode.probe for episode in episodes}, key=numeric_sort_key):
    cells = []
    for k in shots:
      figure = next(episode.name for episode in episodes if (episode.probe, episode.shots) == (probe, k))
      spread = outcome.figures.get(f"{figure}_std")
      ends = single.get(figure)
      of_draw = "" if ends is None else f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
      cells.append(f"{outcome.figures[figure]:.2%}" + (of_draw if spread is None else f" ± {100 * spread:.2f}"))
    print_line(f"  {probe:<12}" + "".join(f"{cell:>22}" for cell in cells))
  if single:
    print_line(f"  [low, high]: 95 % interval ({intervals.WILSON}) of one draw")
  if len(single) < len({episode.name for episode in episodes}):
    print_line(
      f"  ±: standard deviation over {format_amount(seeds, 'draw')}; all draws are evaluated on the same images"
    )


def numeric_sort_key(name: str) -> list[tuple[int, str]]:
  """Returns a sort key that orders numbers in names by value: knn20 precedes knn100."""
  return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def write_outputs(
  outcomes: dict[str, Outcome], weights: str, json_file: pathlib.Path | None, predictions: pathlib.Path | None
) -> None:
  """Writes the requested files. With several evaluations there is one predictions file for each, such as FILE-pets.csv.

  Args:
    outcomes: results by name of the evaluation.
    weights: path of the weights.
    json_file: file for figures and draws, or None.
    predictions: file for predictions, or None.
  """
  if json_file:
    text = json.dumps(
      {"weights": weights, "evals": {name: outcome_to_json(each) for name, each in outcomes.items()}}, indent=2
    )
    files.write_text(json_file, text + "\n")
    print_line(f"\n  figures     {json_file}")
  if predictions is None:
    return
  for name, outcome in outcomes.items():
    path = predictions.with_stem(predictions.stem + (f"-{name}" if len(outcomes) > 1 else ""))
    details = outcome.details
    assert isinstance(details, FewShot)
    columns = [f"{episode.name}_seed{episode.seed}" for episode in details.episodes]
    names = [files.escape_csv(details.test.identify(position)) for position in details.position.tolist()]
    predicted = [episode.predicted.tolist() for episode in details.episodes]
    rows = zip(names, details.label.tolist(), *predicted, strict=True)
    files.write_csv(path, [["id", "label", *columns], *rows])
    print_line(f"  predictions {path}")


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
  """Converts an outcome to JSON values: figures, episodes, and the images that each seed drew for each class."""
  details = outcome.details
  if isinstance(details, Dense):
    splits = {"train": details.train.split, "test": details.test.split}
    return {"figures": outcome.figures, **splits, "iou": details.iou, "pixels": details.pixels.tolist()}
  if not isinstance(details, FewShot):
    return {"figures": outcome.figures}
  episodes = [
    {key: value for key, value in episode._asdict().items() if key != "predicted"} for episode in details.episodes
  ]
  return {
    "figures": outcome.figures,
    "intervals": intervals.compute_figure_intervals(outcome.figures),  # Wilson intervals of one draw
    "train": details.train.split,
    "test": details.test.split,
    "episodes": episodes,
    "drawn": {str(seed): [details.train.identify(i) for i in rows.tolist()] for seed, rows in details.drawn.items()},
  }


if __name__ == "__main__":
  cli.run_verb(main)
