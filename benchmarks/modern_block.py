"""Compares the train steps of ViT-5 and of a plain ViT on TPUs that are not attached: python -m benchmarks.modern_block

The TPU compiler compiles both for each slice of --topology, in bfloat16 with --images of 224 px per core and AdamW.
Attention is compiled as one kernel and as XLA operations. A plain ViT uses the tanh form of GELU, and ViT-5 the form
by erf. Ratios are given to a plain ViT with either form. Needs `pip install -e '.[tpu]'` and no TPU. A program takes
two to four minutes to compile.
"""

import json
from typing import Any

import jax

from vit_jax import cli, config
from vit_jax.models import vit_choices
from vit_jax.planning import estimate
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

MODELS: dict[str, dict[str, Any]] = {
  "plain": {"name": "ViT-B/16"},
  "plain by erf": {"name": "ViT-B/16", "gelu": "erf"},
  "ViT-5": {"name": "vit5_base"},
}


def make_run(images: int, fsdp: bool = False, **model: Any) -> BoundRun:
  """Returns the run to measure.

  Args:
    images: size of the global batch.
    fsdp: whether parameters are split over all devices.
    **model: arguments of the model.
  """
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(dtype="bfloat16", **model),
        data=dict(name="imagenet2012", image_size=224, mixing=dict(name="mixup", alpha=0.2)),
        optim=dict(name="adamw", lr=1e-3, weight_decay=0.1, warmup="10k", mu_dtype="bfloat16"),
        total="90ep",
        batch=images,
        mesh=dict(data=1, fsdp=-1) if fsdp else dict(data=-1),
      )
    )
  )


def main() -> None:
  """Prints a line for each program, and the ratios."""
  parser = cli.Parser("benchmarks.modern_block", __doc__)
  parser.add_argument("--topology", type=cli.parse_slices, default="v3-32,v5e-64", help="slices, separated by commas")
  names = cli.make_names_parser("implementation of attention", vit_choices.ATTENTION)
  parser.add_argument("--attention", type=names, default="fused,xla", help="implementations, separated by commas")
  parser.add_argument("--images", type=int, default=32, help="number of images per core")
  parser.add_argument("--json", type=cli.parse_path, metavar="FILE")
  args = parser.parse_args()
  record = {}
  with estimate.use_tpu_compiler(kernels="fused" in args.attention) as schedules:
    for slice_ in args.topology:
      name = slice_.rented
      images = args.images * len(estimate.make_topology_devices(slice_))
      for attention in args.attention:
        seconds = {}
        for model, arguments in MODELS.items():
          plan = estimate.make_plan(make_run(images, attention=attention, **arguments), slice_, schedules)
          if plan.problem:
            raise SystemExit(f"{model} on {name}: {plan.problem}")
          seconds[model] = plan.step_seconds
          print(f"{name} {attention:<6}{model:<14}{plan.step_seconds * 1e3:8.2f} ms a step", flush=True)
          jax.clear_caches()
        today = seconds["ViT-5"]
        print(f"{name} {attention:<6}ViT-5 takes {today / seconds['plain by erf']:.3f} times the plain step by erf, "
              f"{today / seconds['plain']:.3f} times the plain one", flush=True)  # fmt: skip
        record[f"{name} {attention}"] = seconds
        if args.json:
          files.write_text(args.json, json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
