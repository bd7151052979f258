"""Runs parity fixtures, numbers computed by the original codes: python -m tests.parity DIR

DIR holds any of models/, posemb/, fewshot/, schedules/, optimizers/ and augment/, or is one of these folders itself.
One line for each fixture: its name, the largest relative error (the largest difference over the largest expected
value), pass or fail by the fixture's own absolute tolerance. The last line is `N passed, M failed`; exit code 1 if any
failed.
"""

import argparse
import itertools
import json
import pathlib
import re
import sys
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from vit_jax import importers, losses, models, optim, probes, schema
from vit_jax.data import coordinates, mixing, randaugment
from vit_jax.importers import surgery, vit_google
from vit_jax.models import positions
from vit_jax.optim import schedules
from vit_jax.schema import Choice, Duration

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "parity"
OPTIMIZER_STEPS = 5


class Result(NamedTuple):
  """One comparison: its name, the largest relative error, and what is wrong ("" if nothing is)."""

  name: str
  error: float
  wrong: str


def compare(name: str, ours, theirs, tolerance: float) -> Result:
  """A result for arrays that may differ by `tolerance` in each value."""
  ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
  if ours.shape != theirs.shape:
    return Result(name, float("inf"), f"shape {ours.shape} instead of {theirs.shape}")
  difference = float(np.abs(ours - theirs).max())
  relative = difference / max(float(np.abs(theirs).max()), 1e-30)
  within = difference <= tolerance  # false for NaN too
  return Result(name, relative, "" if within else f"difference {difference:.3g}, tolerance {tolerance:.3g}")


# Models.


def tensors(described: dict) -> dict[str, np.ndarray]:
  """The arrays of a fixture by their published names, made by the rule of the fixtures."""
  return {t["name"]: _array(t) for t in described["tensors"]}


def _array(tensor):
  shape = tuple(tensor["shape"])
  if tensor.get("rule") == "sine_1d":
    return positions.sine(*shape[1:])[None]
  if "rule" in tensor:
    raise ValueError(f"{tensor['name']}: unknown rule {tensor['rule']!r}")
  z = np.random.default_rng(zlib.crc32(tensor["name"].encode())).standard_normal(shape, dtype=np.float32)
  value = np.asarray(np.float32(tensor["mean"]) + np.float32(tensor["std"]) * z)
  return value.astype(tensor.get("dtype", "float32"))


def images(described: dict) -> np.ndarray:
  """The images of a fixture, [B, H, W, C]."""
  given = described["input"]
  drawn = np.random.default_rng(given["seed"]).standard_normal(tuple(given["shape"]), dtype=np.float32)
  return drawn.transpose(0, 2, 3, 1) if given["layout"] == "NCHW" else drawn


def hints(described: dict) -> dict:
  """What a fixture says beside its tensors, in the words of `importers.recognise`."""
  return {"name": described["name"], "image_size": described["image_size"]} | described.get("config", {})


def check_model(file: pathlib.Path) -> Iterator[Result]:
  """Recognises the tensors, builds the model they describe, and compares logits and what goes into the head."""
  described = json.loads(file.read_text())
  found = importers.recognise(tensors(described), hints(described))
  size = described["image_size"]
  expected = {"image_size": tuple(size) if isinstance(size, list) else size, "classes": described["num_classes"]}
  for key, value in expected.items():
    if getattr(found.description, key) != value:
      yield Result(file.stem, float("inf"), f"recognised {key} {getattr(found.description, key)} instead of {value}")
      return
  model = models.functional(found.description).create(found.read())
  graph, params = nnx.split(model)
  function = models.capture(lambda params, x: nnx.merge(graph, params)(x), "pre_logits")
  logits, inside = jax.jit(function)(params, images(described))
  pairs = {"logits": logits, "pre_logits": inside["pre_logits"]}
  results = [compare(file.stem, pairs[key], described["output"][key], described["tolerance"]) for key in pairs]
  wrong = "; ".join(f"{key}: {r.wrong}" for key, r in zip(pairs, results, strict=True) if r.wrong)
  yield Result(file.stem, max(r.error for r in results), wrong)


# Position tables.


def check_positions(file: pathlib.Path) -> Iterator[Result]:
  """Resampled tables, fixed tables, and old tables that count the class token."""
  arrays = np.load(file)
  for key in arrays:
    name, expected = f"{file.stem}/{key}", arrays[key]
    if sizes := re.fullmatch(r"sincos2d_(\d+)x(\d+)x(\d+)", key):
      yield compare(name, positions.sincos2d(*map(int, sizes.groups()))[None], expected, 1e-5)
    elif sizes := re.fullmatch(r"sine_1d_(\d+)x(\d+)", key):
      yield compare(name, positions.sine(*map(int, sizes.groups()))[None], expected, 2e-6)
    elif key == "fold_class_token_out_cls":
      cls, table = vit_google.fold_class_token(
        arrays["fold_class_token_in_cls"], arrays["fold_class_token_in_pos_embedding"]
      )
      yield compare(name, cls, expected, 1e-6)
      table_name = "fold_class_token_out_pos_embedding"
      yield compare(f"{file.stem}/{table_name}", table, arrays[table_name], 1e-6)
    elif sizes := re.fullmatch(r"((?:vit_jax|big_vision)_)?(\d+)(?:x(\d+))?to(\d+)(?:x(\d+))?(_with_cls)?_out", key):
      rows, columns = ((int(sizes[i]), int(sizes[i + 1] or sizes[i])) for i in (2, 4))
      leading, table = int(sizes[6] is not None), arrays[key.removesuffix("_out") + "_in"][0]
      method, tolerance = ("zoom", 1e-6) if sizes[1] else ("bilinear", 2e-6)
      resampled = surgery.resample(table[leading:], rows, columns, method)
      yield compare(name, np.concatenate([table[:leading], resampled])[None], expected, tolerance)


# Learning rates.


def _rates(name, peak, total, warmup, batch, examples, steps, **arguments):
  """Values of a schedule of `optim` at the given steps."""
  shape = schema.lookup(schedules.SCHEDULES, name, "schedule")
  choice = schema.bind(Choice(name, arguments), (shape,), "schedule")

  def length(duration):
    return Duration(duration).steps(batch, examples, total)

  schedule = schedules.create(choice, peak, total, length(warmup), length)
  return np.asarray(jax.jit(jax.vmap(schedule))(np.asarray(steps, np.int32)))


def check_curves(file: pathlib.Path) -> Iterator[Result]:
  """Learning rates by step (big_vision, vision_transformer), or of the first and last step of each epoch (timm)."""
  for curve in json.loads(file.read_text())["curves"]:
    yield (_epoch_curve if "epochs" in curve else _step_curve)(f"{file.stem}/{curve['name']}", curve)


def _step_curve(name, curve):
  given = dict(curve["arguments"])
  kind, total, peak = given.pop("decay_type"), given.pop("total_steps"), given.pop("base", 1.0)
  batch, examples = given.pop("batch_size", 1), given.pop("data_size", 1)
  peak *= batch / 256 if given.pop("scale_with_batchsize", False) else 1
  warmup = given.pop("warmup_steps", 0)
  if "warmup_percent" in given:
    warmup = f"{100 * given.pop('warmup_percent')}%"
  if "warmup_epochs" in given:
    warmup = f"{given.pop('warmup_epochs')}ep"
  match kind:
    case "rsqrt":
      names = {"timescale": "timescale", "shift": "shift", "cooldown_steps": "cooldown"}
      arguments = {ours: given.pop(theirs) for theirs, ours in names.items() if theirs in given}
    case "stair":
      arguments = {"at": given.pop("steps"), "factors": given.pop("mults")}
    case "polynomial":
      arguments = {"power": float(given.pop("power")), "end": given.pop("end")}
    case _:
      end = given.pop("linear_end", 0.0)  # the original's cosine has no use for it
      arguments = {"end": end if kind == "linear" else 0.0}
  if given:
    return Result(name, float("inf"), f"unknown arguments {sorted(given)}")
  rates = _rates(kind, peak, total, warmup, batch, examples, curve["steps"], **arguments)
  return compare(name, rates, curve["values"], 5e-7 * max(curve["values"]))


def _epoch_curve(name, curve):
  given, results = curve["arguments"], []
  warmup, start = given["warmup_t"], given["warmup_lr_init"]
  if "t_initial" in given:
    kind, cooldown = "epoch_cosine", 10
    epochs = given["t_initial"] + cooldown + (warmup if given["warmup_prefix"] else 0)
    arguments = {"end": given["lr_min"], "cooldown": f"{cooldown}ep", "after_warmup": given["warmup_prefix"]}
  else:
    epochs, kind, arguments = 300, "epoch_step", {"every": f"{given['decay_t']}ep", "factor": given["decay_rate"]}
  for batch, examples in ((1, 1), (128, 1437), (128, 50_000)):
    total = Duration(f"{epochs}ep").steps(batch, examples)
    first = np.array([-(-e * examples // batch) for e in curve["epochs"]])
    last = np.array([-(-(e + 1) * examples // batch) - 1 for e in curve["epochs"]])
    for steps in first, last:
      rates = _rates(kind, given["lr"], total, f"{warmup}ep", batch, examples, steps, start=start, **arguments)
      # float32 holds 24 bits; the table itself is computed in float64.
      results.append(compare(name, rates, curve["values"], 1e-7 * max(curve["values"])))
  return next((r for r in results if r.wrong), max(results, key=lambda r: r.error))


# Optimizers.

_COSINE = {"clip": 1.0, "decay": "decoupled", "schedule": Choice("cosine"), "warmup": "2", "total": 10}
_VIT_G = {
  "name": "adafactor",
  "lr": 8e-4,
  "b2_cap": 0.95,
  "weight_decay": 2.4e-5,
  "decay_on": (("head/kernel", 100.0), (".*/kernel", 1.0)),
  "decay": "decoupled",
  "schedule": Choice("rsqrt", {"timescale": "10", "cooldown": "4"}),
  "warmup": "2",
  "clip": 1.0,
  "total": 12,
}
CHAINS = {  # what about.json says of each file: config, and tolerance as a share of the leaf's largest update
  "adam_decoupled_wd": (_COSINE | {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-2}, 3e-5),
  "adam_bf16_decoupled_wd": (
    _COSINE | {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-4, "mu_dtype": "bfloat16"},
    0.02,
  ),
  "adafactor_full": (_VIT_G, 0.02),
  "adafactor_full_float32": (_VIT_G | {"momentum_dtype": "float32"}, 3e-6),
  "momentum_bf16": (_COSINE | {"name": "sgd", "lr": 0.01, "accumulator_dtype": "bfloat16"}, 0.02),
  "momentum_float32": (_COSINE | {"name": "sgd", "lr": 0.01}, 3e-6),
}
RULES = {
  "scale_by_adafactor_only": ({}, 0.02),
  "scale_by_adafactor_only_float32": ({"momentum_dtype": "float32"}, 3e-6),
}


def check_optimizer(file: pathlib.Path) -> Iterator[Result]:
  """Five updates of a whole chain, or of a rule alone, and the parameters after them where they are stored."""

  def cut(arrays, prefix):
    return {key.removeprefix(prefix): jnp.asarray(arrays[key]) for key in arrays if key.startswith(prefix)}

  inputs, outputs = np.load(file.parent / "inputs.npz"), np.load(file)
  params = cut(inputs, "params/")
  if file.stem in CHAINS:
    arguments, tolerance = CHAINS[file.stem]
    arguments = dict(arguments)
    name, total = arguments.pop("name"), arguments.pop("total")
    choice = optim.bind(Choice(name, arguments))
    transformation, _ = optim.create(choice, params, total, lambda duration, total=total: duration.steps(1, 1, total))
  elif file.stem in RULES:
    arguments, tolerance = RULES[file.stem]
    transformation = optim.adafactor(**arguments)
  else:
    yield Result(file.stem, float("inf"), f"no chain of this name is known; known: {', '.join([*CHAINS, *RULES])}")
    return

  steps = range(1, OPTIMIZER_STEPS + 1)
  expected = [cut(outputs, f"step{i}/update/") for i in steps]
  largest = {path: max(float(jnp.abs(e[path]).max()) for e in expected) for path in params}
  state, results = transformation.init(params), []
  for i in steps:
    update, state = transformation.update(cut(inputs, f"step{i}/grad/"), state, params)
    params = optax.apply_updates(params, update)
    for path in params:
      results.append(compare(file.stem, update[path], expected[i - 1][path], tolerance * largest[path]))
  for path, value in cut(outputs, "step5/params/").items():
    limit = OPTIMIZER_STEPS * tolerance * largest[path] + 1e-7 * float(jnp.abs(value).max())
    results.append(compare(file.stem, params[path], value, limit))
  yield next((r for r in results if r.wrong), max(results, key=lambda r: r.error))


# Augmentation.


def check_augmentation(file: pathlib.Path) -> Iterator[Result]:
  """Operations of RandAugment where the file lists any, else mixing."""
  yield from (check_operations if "ops" in np.load(file) else check_mixing)(file)


def check_operations(file: pathlib.Path) -> Iterator[Result]:
  """Arguments from magnitude and sign, and images: exactly, but for one gray level where pixels are interpolated."""
  arrays = np.load(file)
  fill = tuple(arrays["fill"].tolist())
  for name in arrays["ops"]:
    op = randaugment.INCREASING[name]
    arguments = [[op.argument(m, s) for s in arrays["signs"]] for m in arrays["magnitudes"]]
    # An operation without argument has None here and NaN in the file.
    ours, theirs = (np.nan_to_num(np.asarray(x, float), nan=-1) for x in (arguments, arrays[f"{name}_argument"]))
    yield compare(f"{file.stem}/{name}_argument", ours, theirs, 1e-12)
    for key, interpolation in (("out", "bilinear"), ("out_bicubic", "bicubic")):
      if f"{name}_{key}" in arrays:
        outputs = [[[op.apply(i, a, fill, interpolation) for i in arrays["images"]] for a in row] for row in arguments]
        tolerance = 1 if f"{name}_out_bicubic" in arrays else 0
        yield compare(f"{file.stem}/{name}_{key}", outputs, arrays[f"{name}_{key}"], tolerance)


def check_mixing(file: pathlib.Path) -> Iterator[Result]:
  """Mixup and CutMix with given weights and boxes; the partner is the batch in reverse order."""
  arrays = np.load(file)

  def smooth(targets, smoothing):
    return losses.smooth(jnp.asarray(targets), float(smoothing))

  def labels(key, classes):
    return jax.nn.one_hot(arrays[key], int(classes))

  batch = arrays["batch_images"].transpose(0, 2, 3, 1) if "batch_images" in arrays else None
  for key in arrays:
    name = f"{file.stem}/{key.removesuffix('_out')}"
    if match := re.fullmatch(r"(targets\d+)_out", key):
      classes, share, smoothing = arrays[f"{match[1]}_classes_lam_smoothing"]
      targets = labels(f"{match[1]}_labels", classes)
      _, mixed = mixing.blend(jnp.zeros((len(targets), 1, 1, 1)), targets, share, share)
      yield compare(name, smooth(mixed, smoothing), arrays[key], 1e-6)
    elif key == "mixup_images":
      share = arrays["mixup_lam"].item()
      mixed, targets = mixing.blend(jnp.asarray(batch), labels("batch_labels", 10), share, share)
      yield compare(name, mixed.transpose(0, 3, 1, 2), arrays[key], 1e-6)
      yield compare(f"{file.stem}/mixup_targets", smooth(targets, 0.1), arrays["mixup_targets"], 1e-6)
    elif match := re.fullmatch(r"(cutmix\d+)_images", key):
      share, *centre = arrays[f"{match[1]}_lam_cy_cx"]
      box, kept = mixing.cut_box(*batch.shape[1:3], share, np.array(centre, int))
      top, left, height, width = map(int, box)
      expected = arrays[f"{match[1]}_box"]
      yield compare(f"{file.stem}/{match[1]}_box", [top, top + height, left, left + width], expected, 0)
      mask = 1 - coordinates.inside(coordinates.pixels(batch, None), box).astype(np.float32)
      yield compare(f"{file.stem}/{match[1]}_lam_after", kept, arrays[f"{match[1]}_lam_after"], 1e-6)
      mixed, targets = mixing.blend(jnp.asarray(batch), labels("batch_labels", 10), mask, kept)
      yield compare(name, mixed.transpose(0, 3, 1, 2), arrays[key], 0)
      yield compare(f"{file.stem}/{match[1]}_targets", smooth(targets, 0.1), arrays[f"{match[1]}_targets"], 1e-6)


# The command.

# Few-shot probes.


def check_fewshot(file: pathlib.Path) -> Iterator[Result]:
  """Drawn rows, weights, predictions and accuracies, of every seed and number of shots."""
  with np.load(file, allow_pickle=False) as stored:
    given = {name: stored[name] for name in stored.files}
  labels, classes = given["labels_train"], int(given["num_classes"])
  if given["bias_constant"] != probes.BIAS:
    raise ValueError(f"{file}: bias_constant {given['bias_constant']} is not {probes.BIAS}")
  ours, theirs = {}, {}
  for seed, shots in itertools.product(given["seeds"], given["shots"]):
    rows = probes.draw(labels, classes, int(shots), int(seed))
    (probe,) = probes.ridge(given["features_train"][rows], labels[rows], classes, (float(given["l2"]),))
    predicted = probes.scores(probe, given["features_test"]).argmax(1)
    accuracy = (predicted == given["labels_test"]).mean()
    weights = {"weights": probe.weights, "weights_float64": probe.weights}
    for name, value in {"index": rows, **weights, "predicted": predicted, "accuracy": accuracy}.items():
      ours.setdefault(name, []).append(np.ravel(value))
      theirs.setdefault(name, []).append(np.ravel(given[f"seed{seed}_shots{shots}_{name}"]))
  tolerances = {"index": 0, "weights": 1e-4, "weights_float64": 1e-4, "predicted": 0, "accuracy": 1e-6}
  for name, tolerance in tolerances.items():
    yield compare(f"{file.stem}_{name}", *map(np.concatenate, (ours[name], theirs[name])), tolerance)


KINDS = {  # folder -> which files, what checks them
  "models": ("*.json", check_model),
  "posemb": ("*.npz", check_positions),
  "fewshot": ("*.npz", check_fewshot),
  "schedules": ("*.json", check_curves),
  "optimizers": ("*.npz", check_optimizer),
  "augment": ("*.npz", check_augmentation),
}


def found(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
  """(kind, file) of every fixture that a folder of fixtures holds, or that lies in it as in one of its parts."""
  result = []
  for kind, (pattern, _) in KINDS.items():
    part = folder / kind if (folder / kind).is_dir() else folder
    if part is folder and folder.name != kind and not (kind == "models" and _has_models(folder)):
      continue
    result += [(kind, file) for file in sorted(part.glob(pattern)) if file.stem != "inputs"]
  return result


def _has_models(folder):
  """Whether a folder of any name holds descriptions of models."""
  files = sorted(folder.glob("*.json"))
  return bool(files) and "tensors" in json.loads(files[0].read_text())


def check(kind: str, file: pathlib.Path) -> Iterator[Result]:
  """The results of one file; a file that cannot be understood is a failure, not the end."""
  try:
    yield from KINDS[kind][1](file)
  except (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
    yield Result(file.stem, float("inf"), f"{type(error).__name__}: {error}")


def main() -> int:
  """Prints the table; 1 if anything failed, 2 if there was nothing to do."""
  parser = argparse.ArgumentParser("python -m tests.parity", description=__doc__)
  parser.add_argument("folder", type=pathlib.Path, help="folder of fixtures")
  folder = parser.parse_args().folder
  files = found(folder) if folder.is_dir() else []
  if not files:
    print(f"no fixtures in {folder}: it holds none of {', '.join(KINDS)}", file=sys.stderr)
    return 2
  began, passed, failed = time.perf_counter(), 0, 0
  print(f"{'fixture':<72} largest relative error")
  for kind, file in files:
    for result in check(kind, file):
      passed, failed = passed + (not result.wrong), failed + bool(result.wrong)
      verdict = "pass" if not result.wrong else f"FAIL  {result.wrong}"
      print(f"{kind + '/' + result.name:<72} {result.error:9.2e}  {verdict}", flush=True)
  print(f"took {time.perf_counter() - began:.0f} s")
  print(f"{passed} passed, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
