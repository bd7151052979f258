"""A replacement of gcloud that starts in 10 ms, for the calls of `launch.gcloud` to the server of `tests.launch.cloud`.

test_qr.py tests the real gcloud with the same server. Tests with many calls use this program. It prints the errors of
the server in the same way as gcloud.
"""

import json
import os
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request

KINDS = {"queued-resources": "queuedResources", "tpu-vm": "nodes", "locations": ""}


def install(folder: pathlib.Path) -> pathlib.Path:
  """Writes a program with gcloud's name to a folder, which must be on PATH."""
  folder.mkdir(parents=True, exist_ok=True)
  program = folder / "gcloud"
  program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} "$@"\n')
  program.chmod(0o755)
  return folder


def main(words) -> int:
  """Executes one call and returns the exit code."""
  names = [word for word in words if not word.startswith("-") and word not in ("alpha", "compute", "tpus")]
  flags = dict(word[2:].split("=", 1) if "=" in word else (word[2:], "true") for word in words if word[:2] == "--")
  group, verb, name = [*names, ""][:3]
  place = f"v2/projects/{flags['project']}/locations"
  try:
    if group == "locations":
      print(json.dumps(ask("GET", place)["locations"]))
    elif verb == "list":
      print(json.dumps(ask("GET", f"{place}/{flags['zone']}/{KINDS[group]}").get(KINDS[group], [])))
    elif verb == "describe":
      print(json.dumps(ask("GET", f"{place}/{flags['zone']}/{KINDS[group]}/{name}")))
    elif verb == "delete":
      force = "?force=true" if "force" in flags else ""
      ask("DELETE", f"{place}/{flags['zone']}/{KINDS[group]}/{name}{force}")
    else:
      create(f"{place}/{flags['zone']}", name, flags)
  except urllib.error.HTTPError as error:
    found = json.loads(error.read())["error"]
    print(f"ERROR: (gcloud.compute.tpus.{group}.{verb}) {found['status']}: {found['message']}", file=sys.stderr)
    return 1
  except OSError as error:
    print(f"ERROR: gcloud crashed (ConnectionError): {error}", file=sys.stderr)
    return 1
  return 0


def create(place, name, flags):
  """Requests a queued resource of one node."""
  labels = dict(pair.split("=", 1) for pair in flags["labels"].split(","))
  key, _, file = flags["metadata-from-file"].partition("=")
  metadata = {key: pathlib.Path(file).read_text()}
  node = {"acceleratorType": flags["accelerator-type"], "runtimeVersion": flags["runtime-version"], "labels": labels}
  node["metadata"] = metadata
  spec = {"parent": place.removeprefix("v2/"), "nodeId": flags["node-id"], "node": node}
  ask("POST", f"{place}/queuedResources?queuedResourceId={name}", {"tpu": {"nodeSpec": [spec]}})


def ask(method, path, body=None):
  """Returns the response of the server."""
  address = os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
  content = None if body is None else json.dumps(body).encode()
  request = urllib.request.Request(address + path, content, {"Content-Type": "application/json"}, method=method)
  with urllib.request.urlopen(request, timeout=10) as answer:
    return json.load(answer)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
