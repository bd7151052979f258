"""The train step of ViTs on TPUs that are not there, by the TPU's own compiler, beside big_vision's.

    python -m benchmarks.tpu_step --models=B/16,L/16 --topology=v3:4x4 [--attention=xla,fused] [--fsdp] [--json=FILE]

32 images a core, bfloat16, unrolled, with mixup, metrics, clipping, AdamW (bfloat16 first moment) and a moving average
of the weights. `step_seconds` is what tpu_step's peers are measured by: the compiler's estimate of cycles of every
operation plus the kernels' static schedules, without collectives, which it does not price; `links_seconds` is these.
Needs pip install -e '.[tpu]' and no TPU. L/16 compiles in one to three minutes on two cores.
"""

import argparse
import json
import pathlib

import jax

from vit_jax import build, config, hardware, plan, runtime

# Seconds of big_vision's step at commit 0127fb6, measured in the same way on v3:4x4: GAP, no average of the weights.
BIG_VISION = {"B/16": 0.1010, "L/16": 0.3182, "H/14": 0.727}


def run(model: str, attention: str, images: int, fsdp: bool, **arguments) -> config.Run:
  """The run that is measured."""
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(name=f"ViT-{model}", head="gap", dtype="bfloat16", attention=attention, **arguments),
        data=dict(name="imagenet2012", mixing=dict(name="mixup", alpha=0.2)),
        optim=dict(name="adamw", mu_dtype="bfloat16", lr=1e-3, weight_decay=0.1, clip=1.0, warmup="10k", ema=0.9999),
        total="90ep",
        batch=images,
        mesh=dict(data=1, fsdp=-1) if fsdp else dict(data=-1),
      )
    )
  )


def measure(model: str, topology: str, attention: str, fsdp: bool, scan: bool, schedules: pathlib.Path) -> dict:
  """One row of the table."""
  slice_ = hardware.topology(topology)
  devices = len(plan.devices(slice_))
  choice = dict(scan=True, remat="projections") if scan else {}
  found = plan.estimate(run(model, attention, 32 * devices, fsdp, **choice), slice_, schedules)
  if found.problem:
    raise config.ConfigError(f"{model} on {topology}: {found.problem}")
  step = found.step_seconds - found.shares["links"]
  return {
    "model": model,
    "topology": slice_.name,
    "attention": attention,
    "mesh": found.mesh,
    "scan": scan,
    "step_seconds": step,
    "method": found.method,
    "links_seconds": found.shares["links"],
    "flops": found.flops,
    "bytes": found.bytes,
    "hbm_bytes": found.hbm_bytes,
    "compile_seconds": found.compile_seconds,
    "ratio_to_big_vision": step / BIG_VISION[model] if slice_.name == "v3:4x4" and model in BIG_VISION else None,
  }


def main() -> None:
  """Prints a line for each model and formulation."""
  parser = argparse.ArgumentParser("python -m benchmarks.tpu_step", allow_abbrev=False)
  parser.add_argument("--models", default="B/16,L/16", help="sizes and patches, with commas between")
  parser.add_argument("--topology", default="v3:4x4")
  parser.add_argument("--attention", default="xla,fused", help="formulations, with commas between")
  parser.add_argument("--fsdp", action="store_true", help="parameters split over all devices")
  parser.add_argument("--scan", action="store_true", help="one compiled layer; keeps products with parameters")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  given = parser.parse_args()
  runtime.quiet()
  rows = []
  with plan.compiler(kernels="fused" in given.attention) as schedules:
    for model in given.models.split(","):
      for attention in given.attention.split(","):
        rows.append(measure(model, given.topology, attention, given.fsdp, given.scan, schedules))
        print(line(rows[-1]), flush=True)
        jax.clear_caches()
        if given.json:
          runtime.write_text(given.json, json.dumps(rows, indent=2) + "\n")


def line(row: dict) -> str:
  """A row for the eye."""
  ratio = row["ratio_to_big_vision"]
  return (
    f"{row['model']:<6}{row['attention']:<7}{row['mesh']:<10} {row['step_seconds'] * 1e3:7.1f} ms a step"
    + (f", {ratio:.3f} of big_vision's" if ratio else "")
    + f", links {row['links_seconds'] * 1e3:.1f} ms, {row['hbm_bytes'] / 2**30:.2f} GiB, {row['method']}, "
    f"compiled in {row['compile_seconds']:.0f} s"
  )


if __name__ == "__main__":
  runtime.main(main)
