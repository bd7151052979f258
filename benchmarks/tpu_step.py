"""Compares the train step of ViTs on TPUs that are not attached with that of big_vision.

    python -m benchmarks.tpu_step --models=B/16,L/16 --topology=v3:4x4 [--attention=xla,fused] [--fsdp] [--json=FILE]
    python -m benchmarks.tpu_step --models=B/16,L/16 --topology=v5e-64 --attention=xla --matmul=default,int8

The TPU compiler compiles both, with 32 images per core, bfloat16 and unrolled layers. Our step has mixup, metrics,
AdamW (bfloat16 first moment) and a moving average of the weights. The peer has neither mixup nor average. Neither clips
gradients. `--without-average` omits the average. `step_seconds` is the compiler's estimate of the cycles of all
operations, plus the kernels' static schedules. It excludes collectives, for which the compiler gives no estimate.
`links_seconds` is the time of collectives. The second line of a row lists the times of all kinds of operations,
including collectives, see `costs.find_kind`.

`--matmul` compares products of int8 numbers. `--images` tests which batch fits. `--remat` shows its cost in FLOPs.
Needs `pip install -e '.[tpu]'` and no TPU. L/16 compiles in half a minute to two minutes on two cores.
"""

import argparse
import itertools
import json
import pathlib
import typing
from typing import Any

import jax

from benchmarks import big_vision
from vit_jax import cli, config
from vit_jax.models import int8, vit_choices
from vit_jax.planning import estimate, hlo
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun


def make_run(model: str, attention: str, images: int, fsdp: bool, average: bool = True, **arguments: Any) -> BoundRun:
  """Returns our run.

  Args:
    model: size and patch, such as "B/16".
    attention: implementation of attention.
    images: size of the global batch.
    fsdp: whether parameters are split over all devices.
    average: whether the step updates a moving average of the weights.
    **arguments: further arguments of the model.
  """
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(name=f"ViT-{model}", head="gap", dtype="bfloat16", attention=attention, **arguments),
        data=dict(name="imagenet2012", mixing=dict(name="mixup", alpha=0.2)),
        optim=dict(
          name="adamw", mu_dtype="bfloat16", lr=1e-3, weight_decay=0.1, warmup="10k", ema=0.9999 if average else None
        ),
        total="90ep",
        batch=images,
        mesh=dict(data=1, fsdp=-1) if fsdp else dict(data=-1),
      )
    )
  )


def measure_ours(
  model: str, attention: str, matmul: str, args: argparse.Namespace, schedules: pathlib.Path
) -> dict[str, Any]:
  """Returns our row of the table.

  Args:
    model: size and patch, such as "B/16".
    attention: implementation of attention.
    matmul: products of the dense layers, as in the configs.
    args: parsed flags.
    schedules: directory of the kernels' schedules.
  """
  slice_ = args.topology[0]
  images = args.images * len(estimate.make_topology_devices(slice_))
  average = not args.without_average
  chosen = make_run(model, attention, images, args.fsdp, average, scan=args.scan, remat=args.remat, matmul=matmul)
  plan = estimate.make_plan(chosen, slice_, schedules)
  links = plan.shares.get("links", 0.0)
  return {
    "model": model,
    "topology": slice_.name,
    "attention": attention,
    "matmul": matmul,
    "mesh": plan.mesh,
    "images": args.images,
    "average": average,
    "scan": args.scan,
    "remat": args.remat,
    "problem": plan.problem,
    "step_seconds": plan.step_seconds - links,
    "method": plan.method,
    "links_seconds": links,
    "kinds": plan.kinds,
    "flops": plan.flops,
    "bytes": plan.bytes,
    "hbm_bytes": plan.hbm_bytes,
    "compile_seconds": plan.compile_seconds,
  }


def measure_peer(model: str, args: argparse.Namespace) -> float:
  """Returns the seconds of big_vision's step. It uses XLA's attention and has all parameters on every device.

  Args:
    model: size and patch, such as "B/16".
    args: parsed flags.
  """
  slice_ = args.topology[0]
  compiled = big_vision.compile_step(model, estimate.make_topology_devices(slice_), args.images)
  return hlo.read_program(compiled.as_text()).cycles / slice_.chip.clock


def main() -> None:
  """Prints a line for each model and implementation, the peer first."""
  parser = cli.Parser("benchmarks.tpu_step", __doc__)
  parser.add_argument("--models", default="B/16,L/16", help="sizes and patches, separated by commas")
  parser.add_argument("--topology", type=cli.parse_slices, default="v3:4x4", help="a slice")
  names = cli.make_names_parser("implementation of attention", vit_choices.ATTENTION)
  parser.add_argument("--attention", type=names, default="xla,fused", help="implementations, separated by commas")
  names = cli.make_names_parser("matmul type", typing.get_args(int8.Matmul))
  parser.add_argument("--matmul", type=names, default="default", help="default, int8 or both, separated by a comma")
  parser.add_argument("--fsdp", action="store_true", help="parameters split over all devices")
  parser.add_argument("--images", type=int, default=32, help="on a device")
  parser.add_argument("--without-average", action="store_true", help="no moving average of the weights, like the peer")
  parser.add_argument("--scan", action="store_true", help="one compiled layer")
  parser.add_argument("--remat", default="none", help="rematerialisation policy, as in the configs")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  rows = []
  with estimate.use_tpu_compiler(kernels="fused" in args.attention) as schedules:
    for model in args.models.split(","):  # any size of a patch is allowed
      compared = model in big_vision.SIZES and (args.images, args.scan) == (32, False)
      peer = measure_peer(model, args) if compared else None
      if peer:
        print(f"{model:<6}big_vision                {peer * 1e3:7.1f} ms a step", flush=True)
      for attention, matmul in itertools.product(args.attention, args.matmul):
        row = measure_ours(model, attention, matmul, args, schedules)
        ratio = row["step_seconds"] / peer if peer and not row["problem"] else None
        rows.append(row | {"big_vision_seconds": peer, "ratio_to_big_vision": ratio})
        print(format_row(rows[-1]), flush=True)
        jax.clear_caches()
        if args.json:
          files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


def format_row(row: dict[str, Any]) -> str:
  """Formats a row for the screen."""
  ratio = row["ratio_to_big_vision"]
  head = f"{row['model']:<6}{row['attention']:<7}{row['matmul']:<9}{row['mesh']:<10}"
  if row["problem"]:
    return head + row["problem"]
  kinds = [f"{kind} {seconds * 1e3:.1f} ms" for kind, seconds in row["kinds"].items()]
  return head + (
    f"{row['step_seconds'] * 1e3:7.1f} ms a step"
    + (f", {ratio:.3f} of big_vision's" if ratio else "")
    + f", links {row['links_seconds'] * 1e3:.1f} ms, {row['flops'] / 1e12:.3f} TFLOP, "
    f"{row['hbm_bytes'] / 2**30:.2f} GiB, {row['method']}, compiled in {row['compile_seconds']:.0f} s"
    + (f"\n      {', '.join(kinds)}" if kinds else "")
  )


if __name__ == "__main__":
  cli.run_verb(main)
