"""Tests of reading a compiled program, with known traffic, and of the sharding of the train step."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests import runs
from vit_jax import config
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.parallel import sharding
from vit_jax.planning import hlo
from vit_jax.training import build

TEXT = """HloModule jit_step, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], /*index=1*/f32[4,8]{1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %f = f32[4,8]{1,0} fusion(%x), kind=kLoop, calls=%inner, backend_config={"window_config":{"estimated_cycles":"100"}}
  %r = f32[4,8]{1,0} all-reduce(%f), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, %r)
}

%condition (p.1: (s32[], f32[4,8])) -> pred[] {
  %p.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  %n = s32[] constant(24)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  ROOT %lt = pred[] compare(%i.1, %n), direction=LT
}

%inner (q: f32[4,8]) -> f32[4,8] {
  %q = f32[4,8]{1,0} parameter(0)
  ROOT %m = f32[4,8]{1,0} multiply(%q, %q)
}

ENTRY %main (arg: f32[4,8]) -> f32[4,8] {
  %arg = f32[4,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %g = (f32[4,8]{1,0}, bf16[8]{0}) all-gather(%arg, %arg), channel_id=2, replica_groups={{0,1},{2,3}}, dimensions={0}
  %k = f32[4,8]{1,0} custom-call(%arg), custom_call_target="tpu_custom_call", backend_config={"x":1}
  %t.1 = (s32[], f32[4,8]{1,0}) tuple(%zero, %k)
  %w = (s32[], f32[4,8]{1,0}) while(%t.1), condition=%condition, body=%body
  %c = f32[4,8]{1,0} collective-permute(%k), source_target_pairs={{0,1},{1,0}}, backend_config={"estimated_cycles":"7"}
  %s.1 = (f32[2,8]{1,0}, u32[], token[]) send(%c), channel_id=4, is_host_transfer=true
  ROOT %o = f32[4,8]{1,0} get-tuple-element(%w), index=1
}
"""


def test_program_is_read_with_its_loops():
  named = TEXT.replace("calls=%inner", 'calls=%inner, metadata={op_name="jit(step)/a/mul"}')
  program = hlo.read_program(named.replace('tpu_custom_call"', 'tpu_custom_call", metadata={op_name="b"}'))
  assert program.cycles == 24 * 100 + 7
  assert program.loops == 1
  assert program.kernels == {"k": 1}
  operations = [("jit(step)/a/mul", 2400, None, 24), ("", 0, "k", 1), ("", 7, None, 1)]
  assert set(program.operations) == {(*each, "other") for each in operations}
  assert program.network == 2 * 8 * 4 + 4  # the array and its u32
  assert program.collectives == {
    "all-reduce": (24, 24 * 128, 24 * 128 * 2 * 3 / 4),
    "all-gather": (1, 128 + 16, (128 + 16) / 2),
    "collective-permute": (1, 128, 128),
  }
  # Fusion and reduction read and write 128 bytes 24 times, with a comparison. Then follow gather, kernel, permutation
  # and send.
  assert program.traffic == 24 * (4 * 128 + 9) + (256 + 144) + 2 * 128 + 2 * 128 + (128 + 68)


@pytest.mark.parametrize("own", ["", ', metadata={op_name="convert.99"}'])
def test_a_fusion_without_a_name_of_jax_has_the_last_one_inside(own):
  first, second = (f', metadata={{op_name="jit(step)/part_student/{name}"}}' for name in ("mul", "add"))
  inner = f"  %n = f32[4,8]{{1,0}} add(%q, %q){first}\n  %o.1 = f32[4,8]{{1,0}} add(%n, %q){second}\n  ROOT %m ="
  text = TEXT.replace("calls=%inner", f"calls=%inner{own}").replace("  ROOT %m =", inner)
  assert hlo.Operation("jit(step)/part_student/add", 2400, None, 24) in hlo.read_program(text).operations


@pytest.mark.parametrize(
  ("groups", "size"),
  [
    ("replica_groups={{0,1,2,3}}", 4),
    ("replica_groups=[4,8]<=[32]", 8),
    ("replica_groups=mesh['a'=16,'b'=2,'c'=1] {'a','c'}", 16),
    ("replica_groups={}", 0),
  ],
)
def test_replica_groups_are_parsed_in_every_notation(groups, size):
  program = hlo.read_program(TEXT.replace("replica_groups=[2,4]<=[8]", groups))
  share = (size - 1) / size if size else 0
  assert program.collectives["all-reduce"] == (24, 24 * 128, 24 * 128 * 2 * share)


@pytest.mark.heavy
def test_collectives_in_a_loop_count_once_per_iteration():
  grid = sharding.make_mesh(config.Mesh(data=1, fsdp=8), jax.devices())
  weights = jax.ShapeDtypeStruct((5, 16, 32), np.float32, sharding=NamedSharding(grid, PartitionSpec(None, "fsdp")))
  whole = NamedSharding(grid, PartitionSpec())

  def function(weights):
    def body(x, w):
      return x + jax.lax.with_sharding_constraint(w, whole).sum(0), None

    return jax.lax.scan(body, jnp.zeros(32), weights)[0]

  program = hlo.read_program(jax.jit(function).lower(weights).compile().as_text())
  calls, payload, moved = program.collectives["all-gather"]
  assert (calls, payload, moved) == (5, 5 * 16 * 32 * 4, 5 * 16 * 32 * 4 * 7 / 8)


# The step of a run: communication between devices.


def parts(**changes):
  """Builds a small bfloat16 ViT for ImageNet on 8 devices, without any image."""
  edited = flags.load_config(str(runs.ROOT / "configs/vit_s16_i1k.py"))
  for part in ("mixing", "policy"):
    del edited.data[part]
  keys = {"data.image_size": 32, "batch": 16, "optim.ema": 0.9}
  keys |= {"model.depth": 3, "model.width": 256, "model.hidden": 512, "model.heads": 4}
  keys |= {key.replace("__", "."): value for key, value in changes.items()}
  for key, value in keys.items():
    flags.set_value(edited, key, str(value))
  run = build.complete(config.resolve(edited))
  return build.build(run, jax.devices(), catalog.open_known_split)


def collectives(made):
  return hlo.read_program(made.compile().as_text()).collectives


def elements(shapes):
  return sum(math.prod(leaf.shape) for leaf in shapes)


@pytest.mark.long
def test_data_parallel_step_reduces_gradients_once_without_gathers():
  made = parts()
  traffic = collectives(made)
  params = elements(made.state_shapes.params.values())
  assert "all-gather" not in traffic and "reduce-scatter" not in traffic
  # In float32 or bfloat16, with a few scalars for metrics.
  assert 2 * params <= traffic["all-reduce"].payload <= 4 * params + 1000
  # The averaged weights are sharded although the weights are not.
  path = "blocks/0/mlp/up/kernel"
  assert made.state_shapes.params[path].sharding.shard_shape((256, 512)) == (256, 512)
  assert made.state_shapes.ema[path].sharding.shard_shape((256, 512)) == (32, 512)


def split(made, blocks):
  """Counts the elements of sharded parameters, either in the blocks or outside them."""
  shapes = made.state_shapes.params.items()
  return elements(
    leaf
    for path, leaf in shapes
    if path.startswith("blocks") == blocks and leaf.sharding.shard_shape(leaf.shape) != leaf.shape
  )


@pytest.mark.heavy
@pytest.mark.parametrize("scan", [False, True])
def test_fully_sharded_step_gathers_layer_by_layer(scan):
  choice = dict(model__scan=True, model__remat="full") if scan else {}
  made = parts(mesh__data=1, mesh__fsdp=8, **choice)
  compiled = made.compile().as_text()
  program = hlo.read_program(compiled)
  # All weights of the blocks arrive once, or twice if the backward pass recomputes a layer. Other weights arrive at
  # most twice. They are bfloat16, which a CPU converts to float32.
  blocks, others = split(made, True) * (2 if scan else 1), split(made, False)
  assert blocks > others > 0
  assert 2 * blocks <= program.collectives["all-gather"].payload <= 4 * (blocks + 2 * others)
  if scan:
    # Inside the loops. A gather outside them would occur once, with all layers in its shape.
    assert program.collectives["all-gather"].calls >= 2 * 6 * 3
    assert not [line for line in compiled.splitlines() if " all-gather(" in line and "[3," in line.split("=")[1][:40]]
  # Every gradient is reduced at most once in float32.
  reduced = sum(program.collectives[k].payload for k in ("all-reduce", "reduce-scatter") if k in program.collectives)
  assert reduced <= 4.5 * elements(made.state_shapes.params.values())


@pytest.mark.long
def test_tensor_parallel_step_keeps_its_weights_sharded():
  made = parts(mesh__data=2, mesh__tensor=4)
  traffic = collectives(made)
  weights = split(made, True)
  gathered = traffic["all-gather"].payload if "all-gather" in traffic else 0
  assert gathered < 0.1 * 2 * weights
  # Each block sums two partial products forward and two backward, of its rows [8, tokens, 256].
  assert traffic["all-reduce"].calls >= 1


def test_operation_without_an_estimate_has_no_cycles():
  text = TEXT.replace('"estimated_cycles":"7"', f'"estimated_cycles":"{2**63 - 1}"')
  assert hlo.read_program(text).cycles == 24 * 100
