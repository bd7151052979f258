"""The version of a source, for caches of what is computed from its images."""

from vit_jax.data import local_files, sources


def of(source: sources.Source) -> str:
  """Returns a digest that changes if an image changes, also if it is replaced by one of equal size and time.

  The version belongs to the files of this machine: copies of them have another one. It decides whether a cached result
  is used. Whether data are those of a run is decided by fingerprints, see `identity`. No file is read.

  Args:
    source: as a reader opened it. Objects of a bucket have the time of their upload in the fingerprint.
  """
  return sources.digest([source.fingerprint(), *local_files.states(list(source.files()))])
