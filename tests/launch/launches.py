"""Valid runs of `launch`, and hostile texts."""

from launch import spec

HOSTILE = [
  "a;rm -rf ~", "$(id)", "`id`", "a b", "a\nb", "a,b=c", "-x", "--flag", "'", '"', "ä", "\u202e", "\udcff", "", "\t",
  "a" * 10_000,
]  # fmt: skip
IMAGE = f"europe-west4-docker.pkg.dev/p/r/vit@sha256:{'0' * 64}"
BACKENDS = {
  "local": {"processes": 2},
  "hosts": {"hosts": ("10.0.0.1", "alice@10.0.0.2")},
  "qr": {"tpu": "v3-32", "project": "my-project", "workdir": "gs://bkt/runs/a"},
  "gke": {"tpu": "v5e-16", "image": IMAGE, "workdir": "gs://bkt/runs/a"},
}


def run(backend: str = "local", **changes) -> spec.Run:
  """Returns a checked run."""
  return spec.check_and_complete(spec.Run(**words(backend) | changes))


def words(backend: str = "local") -> dict:
  """Returns the arguments of a run."""
  common = {"name": "vit-b16", "backend": backend, "module": "vit_jax.train", "args": (), "workdir": "/tmp/runs/a"}
  return common | {"owner": "alice"} | BACKENDS[backend]
