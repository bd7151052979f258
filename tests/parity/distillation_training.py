"""Parity checks of DINO's and DINOv2's training: schedules, clipping, multipliers and votes of nearest neighbours."""

import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tests.parity.compare import Result, compare
from tests.parity.self_distillation import read_head
from vit_jax import models, optim, trees
from vit_jax.evals import probes
from vit_jax.optim import clipping, schedules, value_schedules
from vit_jax.schema import Choice, Duration, bind, lookup

Arrays = Mapping[str, np.ndarray]
RELATIVE = 1e-6  # tolerance of float32, relative to each value

# Schedules.


def near(name: str, ours, theirs) -> Result:
  """Compares values that may each differ by a share of themselves. A learning rate of 0 must be exact."""
  allowed = RELATIVE * np.where(theirs == 0, 1, np.abs(theirs))
  return compare(name, np.asarray(ours, np.float64) / allowed, theirs / allowed, 1.0)


def at(schedule, count: int) -> np.ndarray:
  return np.asarray(jax.jit(jax.vmap(schedule))(np.arange(count, dtype=np.int32)))


def make_value(total: int, name: str, epoch: int = 1, **arguments):
  def steps(duration):
    return Duration(duration).count_steps(1, epoch, total)

  return value_schedules.create_value_schedule(Choice(name, arguments), total, steps)


def check_dino(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  epoch = meta["iterations_per_epoch"]
  total, warmup = meta["epochs"] * epoch, meta["warmup_epochs"] * epoch
  peak, share = meta["lr_base"], np.sin(np.pi / 2 / (total - warmup)) ** 2
  for key in ("lr", "lr_start"):
    # The file does not name the start and the end of `lr_start`. They follow from its first and last value.
    end = meta["lr_final"] if key == "lr" else (float(arrays[key][-1]) - peak * share) / (1 - share)
    choice = Choice("linspace_cosine", {"end": end, "start": float(arrays[key][0])})
    yield near(f"{name}/{key}", at(schedules.create_schedule(choice, peak, total, warmup, int), total), arrays[key])
  for key in ("wd", "momentum"):
    start, end = meta[key]
    yield near(f"{name}/{key}", at(make_value(total, "cosine", start=start, end=end), total), arrays[key])


def check_dinov2(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  config, total = meta["config"], meta["total"]
  rates, teacher, epoch = config["optim"], config["teacher"], config["train"]["OFFICIAL_EPOCH_LENGTH"]
  count = len(arrays["lr"])
  choice = Choice("linspace_cosine", {"end": rates["min_lr"]})
  rate = at(schedules.create_schedule(choice, rates["lr"], total, rates["warmup_epochs"] * epoch, int), count)
  yield near(f"{name}/lr", rate, arrays["lr"])
  values = {
    "wd": make_value(total, "cosine", start=rates["weight_decay"], end=rates["weight_decay_end"]),
    "momentum": make_value(
      total, "cosine", start=teacher["momentum_teacher"], end=float(teacher["final_momentum_teacher"])
    ),
    "teacher_temp": make_value(
      total,
      "ramp",
      epoch,
      start=teacher["warmup_teacher_temp"],
      end=teacher["teacher_temp"],
      length=f"{teacher['warmup_teacher_temp_epochs']}ep",
    ),
  }
  for key, value in values.items():
    yield near(f"{name}/{key}", at(value, count), arrays[key])
  yield near(f"{name}/last_layer_lr", _delayed_rates(rates, total, epoch, count), arrays["last_layer_lr"])


def _delayed_rates(rates: dict, total: int, epoch: int, count: int) -> np.ndarray:
  """Returns the learning rates of a last layer, measured from the optimizer's updates for a constant gradient."""
  arguments = {
    "lr": rates["lr"],
    "momentum": 0.0,
    "schedule": Choice("linspace_cosine", {"end": rates["min_lr"]}),
    "warmup": f"{rates['warmup_epochs']}ep",
    "delay": ((".*/last/.*", f"{rates['freeze_last_layer_epochs']}ep"),),
  }
  params = {"task/head/last/kernel": jnp.zeros(()), "task/head/layer0/kernel": jnp.zeros(())}
  made = _make(params, arguments, total, epoch)

  def step(state, _):
    update, state = made.update(jax.tree.map(jnp.ones_like, params), state, params)
    return state, -update["task/head/last/kernel"]

  return np.asarray(jax.jit(lambda: jax.lax.scan(step, made.init(params), length=count)[1])())


def _make(params, arguments, total=10, epoch=1, layers_above=None):
  choice = bind(Choice("sgd", arguments), lookup(optim.RULES, "sgd"))
  steps = lambda duration: duration.count_steps(1, epoch, total)  # noqa: E731
  return optim.create_optimizer(choice, params, total, steps, layers_above=layers_above).transformation


# Clipping and multipliers.


def check_clipping(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  gradients = {key.removeprefix("before."): jnp.asarray(arrays[key]) for key in arrays if key.startswith("before.")}
  clipped = clipping.clip_norms(meta["clip"], "tensor", ()).update(gradients, None)[0]
  for key, value in clipped.items():
    yield compare(f"{name}/{key}", value, arrays[f"after.{key}"], 2e-6 * float(np.abs(arrays[f"after.{key}"]).max()))
  norms = np.sort([float(jnp.linalg.norm(gradient)) for gradient in gradients.values()])
  yield compare(f"{name}/norms", norms / np.sort(arrays["norms"]), np.ones(len(norms)), 1e-6)


NAMES = (  # names of DINOv2 -> paths in vit_jax
  ("cls_token", "cls"),
  ("pos_embed", "position/table"),
  ("register_tokens", "registers"),
  ("mask_token", "task/mask_token"),
  (r"patch_embed\.proj\.(.*)", r"embedding/\1"),
  (r"blocks\.(\d+)\.norm(\d)\.(.*)", r"blocks/\1/norm\2/\3"),
  (r"blocks\.(\d+)\.attn\.qkv\.(.*)", r"blocks/\1/attention/(query|key|value)/\2"),
  (r"blocks\.(\d+)\.attn\.proj\.(.*)", r"blocks/\1/attention/out/\2"),
  (r"blocks\.(\d+)\.ls(\d)\.gamma", r"blocks/\1/layer_scale\2"),
  (r"blocks\.(\d+)\.mlp\.fc1\.(.*)", r"blocks/\1/mlp/up/\2"),
  (r"blocks\.(\d+)\.mlp\.fc2\.(.*)", r"blocks/\1/mlp/down/\2"),
  (r"norm\.(.*)", r"norm/\1"),
)
DECAYED = ((r".*/kernel|cls|registers|position/table|task/mask_token|.*/last/scale", 1.0),)


def find_paths(name: str, paths) -> list[str]:
  """Returns the paths of the parameters that correspond to a parameter of DINOv2."""
  for pattern, ours in NAMES:
    if match := re.fullmatch(pattern, name):
      ours = match.expand(ours)
      ours = re.sub(r"weight$", "scale" if "norm" in name else "kernel", ours)
      return [path for path in paths if re.fullmatch(ours, path)]
  return []


def check_groups(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  """Checks multipliers that are measured from two optimizer updates: with a gradient, and with the decay alone."""
  depth, decay = meta["depth"], meta["layerwise_decay"]
  registers = 2 * ("register_tokens" in arrays["backbone.name"])
  choice = Choice("ViT-S/14", {"depth": depth, "registers": registers, "layer_scale": 1e-5, "width": 24, "hidden": 32})
  model = models.make_functional(models.Description(choice, 28, 0))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  head = list(read_head(_shape_head(arrays), "dino_head.", "task/dino_head"))
  paths = [*shapes, "task/mask_token", *head]
  above = model.count_layers_above()
  for case, layer_decay in (("backbone", decay), ("backbone_no_decay", None)):
    rows = [("embedding/.*", meta["patch_embed_lr_mult"])]
    if layer_decay:  # the mask token belongs to the task, and the task's parameters are above the model
      rows.append(("task/mask_token", layer_decay ** (depth + 1)))
    rates, decays = _measure_multipliers(paths, tuple(rows), layer_decay, above)
    found = [find_paths(each, paths) for each in arrays[f"{case}.name"]]
    found += [[path] for path in head]
    if unnamed := set(paths) - {path for row in found for path in row} or not all(found):
      raise ValueError(f"names without a parameter, or parameters without a name: {unnamed}")
    for kind, ours in (("lr", rates), ("wd", decays)):
      theirs = np.concatenate([arrays[f"{each}.{kind}_multiplier"] for each in (case, "dino_head")])
      measured = [ours[path] for row in found for path in row]
      expected = np.repeat(theirs, [len(row) for row in found])
      yield compare(f"{name}/{case}.{kind}_multiplier", measured, expected, 1e-12)
    last = np.concatenate([arrays[f"{each}.is_last_layer"] for each in (case, "dino_head")])
    ours = [all(re.fullmatch(".*/last/.*", path) for path in row) for row in found]
    yield compare(f"{name}/{case}.is_last_layer", ours, last, 0)


def _shape_head(arrays: Arrays) -> dict[str, np.ndarray]:
  """Returns the parameter names of a head with arrays of a suitable rank."""
  return {f"dino_head.{name}": np.zeros((1,) if name.endswith("bias") else (1, 1)) for name in arrays["dino_head.name"]}


def _measure_multipliers(paths, rows, layer_decay, above):
  """Returns {path: multiplier} of the learning rate and of the weight decay in float64."""
  arguments = {
    "lr": 1.0,
    "momentum": 0.0,
    "schedule": Choice("constant"),
    "weight_decay": 1.0,
    "decay_on": DECAYED,
    "lr_multipliers": rows,
    "layer_decay": layer_decay,
  }
  with jax.enable_x64(True):
    ones, zeros = ({path: jnp.full((), value, jnp.float64) for path in paths} for value in (1, 0))
    made = _make(ones, arguments, layers_above=above)
    state = made.init(ones)
    rates = made.update(ones, state, zeros)[0]
    decays = made.update(zeros, state, ones)[0]
    values = {path: -float(rate) for path, rate in trees.flatten(rates).items()}
    return values, {path: -float(value) / values[path] for path, value in trees.flatten(decays).items()}


# Nearest neighbours.


def check_neighbours(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  """Checks the top-1 accuracy of the votes. The evaluation does not compute top-5."""
  counts = sorted(int(key.removeprefix("top1_top5_k")) for key in arrays if key.startswith("top1_top5_k"))
  fitted = probes.nearest_neighbours(
    arrays["train_features"],
    arrays["train_labels"],
    meta["classes"],
    neighbours=tuple(counts),
    weights="softmax",
    temperature=meta["T"],
  )
  for count, classify in fitted:
    correct = 100 * np.mean(classify(arrays["test_features"]) == arrays["test_labels"])
    yield compare(f"{name}/top1_k{count}", correct, arrays[f"top1_top5_k{count}"][0], 1e-9)
