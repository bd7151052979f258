"""Parity checks of five updates of whole optimizer chains, and of single rules."""

import pathlib
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import optax

from tests.parity.compare import Result, compare
from vit_jax import optim
from vit_jax.schema import Choice, bind, lookup

STEPS = 5
_COSINE = {"clip": 1.0, "decay": "independent", "schedule": Choice("cosine"), "warmup": "2", "total": 10}
_VIT_G = {
  "name": "adafactor",
  "lr": 8e-4,
  "b2_cap": 0.95,
  "weight_decay": 2.4e-5,
  "decay_on": (("head/kernel", 100.0), (".*/kernel", 1.0)),
  "decay": "independent",
  "schedule": Choice("rsqrt", {"timescale": "10", "cooldown": "4"}),
  "warmup": "2",
  "clip": 1.0,
  "total": 12,
}
CHAINS = {  # the config of each file from about.json, and the tolerance as a share of the leaf's largest update
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


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks five updates of a whole chain or of a single rule, and the final parameters if the file contains them."""

  def cut(arrays, prefix):
    return {key.removeprefix(prefix): jnp.asarray(arrays[key]) for key in arrays if key.startswith(prefix)}

  inputs, outputs = np.load(file.parent / "inputs.npz"), np.load(file)
  params = cut(inputs, "params/")
  if file.stem in CHAINS:
    arguments, tolerance = CHAINS[file.stem]
    arguments = dict(arguments)
    name, total = arguments.pop("name"), arguments.pop("total")
    choice = bind(Choice(name, arguments), lookup(optim.RULES, name))
    transformation = optim.create_optimizer(
      choice, params, total, lambda duration, total=total: duration.count_steps(1, 1, total)
    ).transformation
  elif file.stem in RULES:
    arguments, tolerance = RULES[file.stem]
    transformation = optim.adafactor(**arguments)
  else:
    yield Result(file.stem, float("inf"), f"no chain of this name is known; known: {', '.join([*CHAINS, *RULES])}")
    return

  steps = range(1, STEPS + 1)
  expected = [cut(outputs, f"step{i}/update/") for i in steps]
  largest = {path: max(float(jnp.abs(e[path]).max()) for e in expected) for path in params}
  state, results = transformation.init(params), []
  for i in steps:
    update, state = transformation.update(cut(inputs, f"step{i}/grad/"), state, params)
    params = optax.apply_updates(params, update)
    for path in params:
      results.append(compare(file.stem, update[path], expected[i - 1][path], tolerance * largest[path]))
  for path, value in cut(outputs, "step5/params/").items():
    limit = STEPS * tolerance * largest[path] + 1e-7 * float(jnp.abs(value).max())
    results.append(compare(file.stem, params[path], value, limit))
  yield next((r for r in results if r.wrong), max(results, key=lambda r: r.error))
