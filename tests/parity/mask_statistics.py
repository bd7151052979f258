"""Parity checks of mask statistics within sampling error: mean count, adjacent pairs, frequency of each position."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tests.parity.compare import Result, compare
from vit_jax.selfsup import patch_masks

Arrays = Mapping[str, np.ndarray]
ERRORS = 4  # standard errors of the difference of two means
SKEWED = 0.05  # additional tolerance for counts
FREQUENCY = 0.07


def check_blocks(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  for case, about in meta["cases"].items():
    grid = tuple(about["grid"])
    target, largest = about["target"], about["max_num_patches"]

    @jax.jit
    @jax.vmap
    def draw(key, grid=grid, target=target, largest=largest):
      return patch_masks.draw_blocks(key, target, grid, meta["min_num_patches"], largest)

    masks = np.asarray(draw(jax.random.split(jax.random.key(0), meta["draws"])))
    yield from compare_statistics(f"{name}/{case}", masks, arrays, case, meta["draws"])
    yield compare(f"{name}/{case}_above_target", max(0, masks.sum((1, 2)).max() - target), 0, 0)


def check_ibot(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  for case, about in meta["cases"].items():
    grid = tuple(about["grid"])
    pairs = zip(*(np.atleast_1d(about[key]).tolist() for key in ("pred_ratio", "pred_ratio_var")), strict=True)
    shape = "random" if about["shape"] == "rand" else "block"
    ratios = tuple(pairs)
    drawn = jax.jit(
      lambda key, grid=grid, ratios=ratios, shape=shape: patch_masks.draw_ratio_masks(
        key, meta["draws"], 1, grid, ratios, shape
      )
    )(jax.random.key(0))
    masks = np.asarray(drawn.masks).reshape(-1, *grid)
    yield from compare_statistics(f"{name}/{case}", masks, arrays, case, meta["draws"])
    limit = max(mean + deviation for mean, deviation in ratios) * masks[0].size
    yield compare(f"{name}/{case}_above_target", max(0, masks.sum((1, 2)).max() - limit), 0, 1e-4)
    yield compare(f"{name}/{case}_lost", np.asarray(drawn.valid).sum(), masks.sum(), 0)


def compare_statistics(name: str, masks: np.ndarray, arrays: Arrays, case: str, draws: int) -> Iterator[Result]:
  pairs = (masks[:, 1:] & masks[:, :-1]).sum((1, 2)) + (masks[:, :, 1:] & masks[:, :, :-1]).sum((1, 2))
  for key, values, allowed in (("count", masks.sum((1, 2)), SKEWED), ("pairs", pairs, 0)):
    theirs, deviation = (float(arrays[f"{case}.{key}_{kind}"]) for kind in ("mean", "std"))
    limit = ERRORS * np.sqrt((deviation**2 + values.var()) / draws) + allowed + 1e-9
    yield compare(f"{name}_{key}_mean", values.mean(), theirs, limit)
  yield compare(f"{name}_frequency", masks.mean(0), arrays[f"{case}.frequency"], FREQUENCY)


def check_batches(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  """Checks masks of whole batches: total, upper bound, masked crops, and the counts in ascending order."""
  crops, grid = meta["crops"], tuple(meta["grid"])
  ratio, share, draws = tuple(meta["mask_ratio"]), meta["mask_probability"], meta["draws"]
  bound = patch_masks.count_slots(crops, grid, ratio, share)
  yield compare(f"{name}/upperbound", bound, arrays["upperbound"], 0)
  drawn = {
    fill: jax.jit(lambda key, fill=fill: patch_masks.draw_masks(key, draws, crops, grid, ratio, share, fill))(
      jax.random.key(0)
    )
    for fill in (False, True)
  }
  counts = np.asarray(drawn[False].masks.sum(2))
  yield compare(f"{name}/masked_crops", np.unique((counts > 0).sum(1)), arrays["masked_crops"], 0)
  total = counts.sum(1)
  limit = ERRORS * np.sqrt((float(arrays["total_std"]) ** 2 + total.var()) / draws) + SKEWED
  yield compare(f"{name}/total_mean", total.mean(), arrays["total_mean"], limit)
  ordered = np.sort(counts, 1)
  limits = ERRORS * np.sqrt((arrays["sorted_count_std"] ** 2 + ordered.var(0)) / draws) + SKEWED
  yield compare(f"{name}/sorted_counts", ordered.mean(0) / limits, arrays["sorted_count_mean"] / limits, 1)
  filled = np.asarray(drawn[True].masks)
  limits = [int(filled.shape[2] * p) for p in np.linspace(*ratio, int(crops * share) + 1)[1:]]
  expected = np.sort([0] * (crops - len(limits)) + limits)
  yield compare(f"{name}/filled_counts", np.sort(filled.sum(2), 1), np.tile(expected, (draws, 1)), 0)
  yield compare(f"{name}/filled_total", filled.sum((1, 2)), np.full(draws, bound), 0)
  yield compare(f"{name}/unused_slots", jnp.sum(~drawn[True].valid), 0, 0)
