"""Restores a checkpoint in several processes if the last one has damaged files: python -m tests.damaged WORKDIR

All processes save three steps. Then the last process reads its own copy. In this copy, the metadata of step 3 is empty,
and so is the part of step 2 that only this process needs. All processes restore, and each prints its step.
"""

import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp

from vit_jax import checkpoints, config, runtime
from vit_jax.parallel import sharding


def main(workdir: pathlib.Path) -> None:
  """Saves the steps, damages the copy and restores."""
  runtime.start()
  grid = sharding.make_mesh(config.Mesh(data=1, fsdp=-1), jax.devices())
  # The values must not be compressible, because process 0 would store compressible ones in its own files.
  values = jax.jit(
    lambda: jnp.sin(jnp.arange(2**14)).reshape(64, 256), out_shardings=sharding.make_batch_sharding(grid)
  )()
  shape = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=values.sharding)
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(grid), keep=3)
  for step in (1, 2, 3):
    store.save(step, {"values": values}, {"step": step})
  store.close()
  if jax.process_index() == jax.process_count() - 1:
    shutil.copytree(workdir / "checkpoints", workdir / "own/checkpoints")
    workdir = workdir / "own"
    (workdir / "checkpoints/3/about/metadata").write_text("")
    for file in (workdir / "checkpoints/2/state").glob(f"ocdbt.process_{jax.process_index()}/d/*"):
      file.write_bytes(b"")
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(grid), read_only=True)
  print(f"restored {store.restore({'values': shape})[1]}", flush=True)


if __name__ == "__main__":
  sys.stderr = sys.stdout
  main(pathlib.Path(sys.argv[1]))
