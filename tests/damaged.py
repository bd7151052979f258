"""Several processes, of which the last has damaged files: python -m tests.damaged WORKDIR

They save three steps. Then the last process reads a copy of its own, in which what is said about step 3 and the part of
step 2 that it alone needs are empty; all restore, and each says which step it has.
"""

import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp

from vit_jax import checkpoints, config, runtime
from vit_jax.parallel import sharding


def main(workdir: pathlib.Path) -> None:
  """Saves, damages, restores."""
  runtime.start()
  grid = sharding.make_mesh(config.Mesh(data=1, fsdp=-1), jax.devices())
  # Values that do not compress: process 0 would keep them among its own files.
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
