"""Compares the train steps of a scanned ViT by Muon and AdamW on TPUs that are not attached: python -m benchmarks.muon

The TPU compiler compiles both for --topology=v5e-64, ViT-B/16 in bfloat16 with --images per device. The ratio compares
whole steps with communication. The collectives of a step are counted with five iterations of Newton-Schulz and with
one. If both counts are equal, no collectives are inside the iterations. Needs `pip install -e '.[tpu]'` and no TPU.
"""

import json
import pathlib
from typing import Any

import jax

from vit_jax import cli, config
from vit_jax.planning import estimate
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun


def make_run(model: str, images: int, **optim: Any) -> BoundRun:
  """Returns the run to measure.

  Args:
    model: size and patch, such as "B/16".
    images: size of the global batch.
    **optim: arguments of the optimizer.
  """
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(name=f"ViT-{model}", head="gap", dtype="bfloat16", scan=True),
        data=dict(name="imagenet2012", mixing=dict(name="mixup", alpha=0.2)),
        optim=dict(lr=1e-3, weight_decay=0.1, warmup="10k", **optim),
        total="90ep",
        batch=images,
        mesh=dict(data=-1),
      )
    )
  )


def main() -> None:
  """Prints a line for each optimizer, and the ratio."""
  parser = cli.Parser("benchmarks.muon", __doc__)
  parser.add_argument("--model", default="B/16", help="size and patch")
  parser.add_argument("--topology", type=cli.parse_slices, default="v5e-64", help="a slice")
  parser.add_argument("--images", type=int, default=64, help="on a device")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  slice_, plans = args.topology[0], {}
  settings: dict[str, dict[str, Any]] = {
    "adamw": dict(name="adamw", mu_dtype="bfloat16"),
    "muon": dict(name="muon", mu_dtype="bfloat16"),
    "muon, 1 iteration": dict(name="muon", mu_dtype="bfloat16", iterations=1),
  }
  with estimate.use_tpu_compiler(kernels=False) as schedules:
    for name, optim in settings.items():
      images = args.images * len(estimate.make_topology_devices(slice_))
      plan = plans[name] = estimate.make_plan(make_run(args.model, images, **optim), slice_, schedules)
      if plan.problem:
        raise SystemExit(f"{name}: {plan.problem}")
      calls = ", ".join(
        f"{kind} {each['calls']} x, {each['payload'] / 1e6:.0f} MB" for kind, each in plan.collectives.items()
      )
      print(f"{name:<18}{plan.step_seconds * 1e3:7.2f} ms a step, {plan.flops / 1e12:.3f} TFLOP; {calls}", flush=True)
      jax.clear_caches()
  ratio = plans["muon"].step_seconds / plans["adamw"].step_seconds
  inner = [{kind: each["calls"] for kind, each in plans[name].collectives.items()} for name in list(settings)[1:]]
  inside = "none" if inner[0] == inner[1] else f"{inner[0]}, with one {inner[1]}"
  print(f"muon takes {ratio:.3f} times adamw's step; collectives inside the iterations: {inside}")
  if args.json:
    record = {"ratio": ratio, "seconds": {name: plan.step_seconds for name, plan in plans.items()}, "calls": calls}
    files.write_text(args.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
