"""Descriptions of queued resources and nodes as gcloud prints them, as Python values, and an engine for them."""

from launch import qr
from tests.launch import cloud
from tests.launch.scripted import api_error

EXPIRES = 1_795_300_000
GONE = api_error("NOT_FOUND", "Resource 'projects/proj-x/locations/z/queuedResources/vit-b16-a1' was not found")
MANY = {"tpu": "v5e-16", "slices": 3, "zones": ("us-west4-a",)}


def engine(folder, **changes):
  """Returns the engine of a run with two published attempts."""
  run = cloud.run(**changes)
  return qr.Engine(run, cloud.store(folder / "run", run, 1, 2))


def labels(run, attempt=1):
  """Returns the labels of an attempt as `create` writes them."""
  flag = next(word for word in qr.Engine(run)._build_create_command(attempt, EXPIRES) if word.startswith("--labels="))
  return dict(pair.split("=") for pair in flag.removeprefix("--labels=").split(","))


def item(run, state, attempt=1, name="", zone="europe-west4-a", **more):
  """Returns a queued resource as gcloud describes it."""
  node = {"acceleratorType": "v3-32", "labels": labels(run, attempt)}
  return {
    "name": f"projects/proj-x/locations/{zone}/queuedResources/{name or run.get_attempt_name(attempt)}",
    "state": {"state": state, "stateInitiator": "SERVICE", **more},
    "tpu": {"nodeSpec": [{"node": node, "nodeId": run.get_attempt_name(attempt)}]},
  }


def node(run, name="vit-b16-a1", state="READY", hosts=4, attempt=1, zone="europe-west4-a", **more):
  """Returns a node as gcloud describes it."""
  return {
    "name": f"projects/proj-x/locations/{zone}/nodes/{name}",
    "state": state,
    "health": "HEALTHY",
    "labels": labels(run, attempt),
    "networkEndpoints": [{"ipAddress": f"10.0.0.{i}"} for i in range(hosts)],
  } | more


def flags(call):
  """Returns {flag: value} of an argument list."""
  return {word.partition("=")[0]: word.partition("=")[2] for word in call if word.startswith("--")}
