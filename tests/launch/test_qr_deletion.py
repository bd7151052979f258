"""Tests of deletions and of the inventory of the engine of queued resources, with a scripted gcloud."""

import shlex

import pytest

from launch.errors import UnknownError
from launch.states import ABSENT, DELETING, LOST
from tests.launch import cloud
from tests.launch.descriptions import GONE, MANY, engine, item, node
from tests.launch.scripted import Answer, api_error

# Deletions.


def test_attempt_is_absent_only_without_its_nodes(tmp_path, program):
  made, run = engine(tmp_path, **MANY), cloud.run(**MANY)
  program.answers("queued-resources", "describe", GONE)
  for name in (f"vit-b16-a1-{number}" for number in range(3)):
    program.answers("tpu-vm", "describe", api_error("NOT_FOUND", f"Resource 'nodes/{name}' was not found"), name=name)
  assert made.look(1).state == ABSENT
  program.answers("tpu-vm", "describe", node(run, "vit-b16-a1-1"), name="vit-b16-a1-1")
  look = made.look(1)
  assert look.state == LOST and "vit-b16-a1-1 is READY" in look.detail and "billed" in look.detail
  assert "tpu-vm delete vit-b16-a1-1" in made.build_commands(1, 0).delete
  program.answers("tpu-vm", "describe", node(run, "vit-b16-a1-1", "DELETING"), name="vit-b16-a1-1")
  assert made.look(1).state == DELETING


def test_node_without_its_queued_resource_is_deleted(tmp_path, program):
  program.answers("queued-resources", "describe", GONE)
  program.answers("tpu-vm", "describe", node(cloud.run()), node(cloud.run(), state="DELETING"))
  program.answers("tpu-vm", "delete", {})
  made = engine(tmp_path)
  made.delete(1)
  made.delete(1)
  deletions = [call for call in program.calls if "delete" in call]
  assert len(deletions) == 1 and deletions[0][2:5] == ["tpu-vm", "delete", "vit-b16-a1"]
  assert {"--async", "--quiet"} <= set(deletions[0]) and "--force" not in deletions[0]


def test_node_of_another_user_is_kept(tmp_path, program):
  program.answers("queued-resources", "describe", GONE)
  program.answers("tpu-vm", "describe", node(cloud.run(owner="bob", workdir="gs://bkt/other")))
  made = engine(tmp_path)
  assert made.look(1).state == ABSENT
  made.delete(1)
  assert not [verb for verb in program.verbs() if "delete" in verb]


def test_node_with_a_changed_label_is_not_absent(tmp_path, program):
  program.answers("queued-resources", "describe", GONE)
  program.answers("tpu-vm", "describe", node(cloud.run(owner="bob")))
  made = engine(tmp_path)
  for call in (made.look, made.delete):
    with pytest.raises(UnknownError, match="vitjax-owner=bob"):
      call(1)
  assert not [verb for verb in program.verbs() if "delete" in verb]


def test_repeated_deletion_has_no_effect(tmp_path, program):
  run = cloud.run()
  program.answers("queued-resources", "describe", item(run, "ACTIVE"), item(run, "DELETING"), GONE)
  program.answers("tpu-vm", "describe", GONE)
  program.answers("queued-resources", "delete", Answer(""))
  made = engine(tmp_path)
  for _ in range(3):
    made.delete(1)
  (call,) = [call for call in program.calls if "delete" in call]
  assert {"--force", "--async", "--quiet"} <= set(call)


def test_resource_that_vanishes_during_deletion_is_accepted(tmp_path, program):
  program.answers("queued-resources", "describe", item(cloud.run(), "ACTIVE"))
  program.answers("queued-resources", "delete", GONE)
  engine(tmp_path).delete(1)


def test_deletion_without_a_response_is_unknown(tmp_path, program):
  program.answers("queued-resources", "describe", item(cloud.run(), "ACTIVE"))
  program.answers("queued-resources", "delete", api_error("INTERNAL"))
  with pytest.raises(UnknownError):
    engine(tmp_path).delete(1)


def test_commands_for_a_manual_deletion_are_complete(tmp_path):
  text = engine(tmp_path).build_commands(2, 0).delete
  first, *others = [shlex.split(line) for line in text.split("; ")]
  where = ["--project=proj-x", "--zone=europe-west4-a"]
  assert first == ["gcloud", "compute", "tpus", "queued-resources", "delete", "vit-b16-a2", "--force", *where]
  assert [line[3:5] for line in others] == [["queued-resources", "list"], ["tpu-vm", "list"]]


# Inventory.


def test_inventory_has_launch_resources_and_leaked_nodes(tmp_path, program):
  run = cloud.run()
  kept, other = item(run, "ACTIVE"), item(run, "ACTIVE", name="speech")
  other["tpu"]["nodeSpec"][0]["node"]["labels"] = {"team": "speech"}
  nodes = [
    node(run, queuedResource=kept["name"]),
    node(run, "old-a1", queuedResource="projects/p/locations/z/q/old-a1"),
  ]
  program.answers("queued-resources", "list", [kept, other])
  program.answers("tpu-vm", "list", [*nodes, node(run, "theirs", labels={})])
  found, failures = engine(tmp_path).list_resources(("europe-west4-a",))
  assert [each.name for each in found] == ["vit-b16-a1", "old-a1"] and not failures
  assert found[1].detail == "READY, without its queued resource"


@pytest.mark.parametrize("group", ["queued-resources", "tpu-vm"])
def test_unreachable_zone_is_not_empty(tmp_path, program, group):
  program.answers("queued-resources", "list", [item(cloud.run(), "ACTIVE")])
  program.answers("tpu-vm", "list", [])
  program.answers(group, "list", api_error("UNAVAILABLE"))
  found, failures = engine(tmp_path).list_resources(("europe-west4-a",))
  assert list(failures) == ["europe-west4-a"] and "UNAVAILABLE" in failures["europe-west4-a"]
  assert len(found) == (group == "tpu-vm")


@pytest.mark.parametrize("answer", [api_error("PERMISSION_DENIED"), api_error("INTERNAL"), [], GONE])
def test_inventory_is_unknown_without_the_list_of_zones(tmp_path, program, answer):
  program.answers("locations", "list", answer)
  found, failures = engine(tmp_path).list_resources(())
  assert not found and list(failures) == ["all zones"]


def test_listed_resource_is_deleted_only_if_it_is_unchanged(tmp_path, program):
  run, made = cloud.run(), engine(tmp_path, name="other")
  program.answers("queued-resources", "list", [item(run, "SUSPENDED")])
  program.answers("tpu-vm", "list", [])
  (found,), _ = made.list_resources(("europe-west4-a",))
  program.answers("queued-resources", "describe", item(run, "SUSPENDED", attempt=2, name="vit-b16-a1"))
  made.delete(found)
  assert not [verb for verb in program.verbs() if "delete" in verb]
  program.answers("queued-resources", "describe", item(run, "SUSPENDED"))
  program.answers("queued-resources", "delete", {})
  made.delete(found)
  assert program.verbs()[-1] == "queued-resources delete vit-b16-a1"
