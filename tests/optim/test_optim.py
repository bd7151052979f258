"""Tests of optimizers with patterns on parameter paths, of their states, and of errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.optimizers import bound, bytes_of, example, make, walk
from vit_jax import optim, trees
from vit_jax.schema import Choice, ConfigError, enter_key

# Parts of the network.


@pytest.mark.heavy
@pytest.mark.parametrize("name", optim.RULES)
def test_frozen_parameters_have_no_update_no_state_and_no_norm(name):
  params, gradients = example()
  frozen = ("embedding/.*", "blocks/[01]/.*")
  args = {"name": name, "weight_decay": 0.1, "clip": 0.1}
  after, updates, state = walk(make(params, frozen=frozen, **args)[0], params, gradients)
  held = optim.list_paths_without_gradients(frozen, params)
  assert held == {p for p in params if p.startswith(("embedding", "blocks/0", "blocks/1"))}
  # Compared with the same run without these parameters.
  small = {p: v for p, v in params.items() if p not in held}
  lean = [{p: v for p, v in g.items() if p not in held} for g in gradients]
  expected, _, lean_state = walk(make(small, **args)[0], small, lean)
  for path, value in params.items():
    np.testing.assert_array_equal(after[path], value if path in held else expected[path])
  assert all(not np.any(update[path]) for update in updates for path in held)
  assert bytes_of(state) == bytes_of(lean_state)


@pytest.mark.heavy
@pytest.mark.parametrize("frozen", [(), ("embedding/.*",)])
def test_statistics_are_frozen_and_match_no_pattern(frozen):
  params, gradients = example()
  own = {"norm/mean": jnp.ones(3), "norm/var": jnp.ones(3)}
  args = {"weight_decay": 0.1, "decay_on": ((".*", 1.0),), "clip": 0.1, "frozen": frozen, "layer_decay": 0.7}
  statistics = frozenset(own)
  transformation, _ = make(params | own, statistics=statistics, **args)
  assert (
    optim.list_paths_without_gradients(frozen, params | own, statistics)
    == optim.list_paths_without_gradients(frozen, params) | statistics
  )
  after, _, state = walk(transformation, params | own, [g | jax.tree.map(jnp.ones_like, own) for g in gradients])
  expected, _, lean = walk(make(params, **args)[0], params, gradients)
  for path, value in (expected | own).items():
    np.testing.assert_array_equal(after[path], value, err_msg=path)
  assert bytes_of(state) == bytes_of(lean)
  for pattern in ("norm/mean", "norm/(mean|var)"):
    with pytest.raises(ConfigError, match="matches no parameter"):
      optim.list_paths_without_gradients((pattern,), params | own, statistics)
  with pytest.raises(ConfigError, match="no parameter would be trained"):
    optim.list_paths_without_gradients((".*",), params | own, statistics)


@pytest.mark.heavy
@pytest.mark.parametrize("decay", ["times_lr", "independent"])
def test_first_matching_pattern_multiplies_the_rate(decay):
  params, gradients = example()
  common = {"weight_decay": 0.1, "decay": decay}
  plain, _ = make(params, **common)
  scaled, _ = make(params, lr_multipliers=(("blocks/2/.*", 0.5), ("blocks/.*", 0.25), ("cls", 0.0)), **common)
  (_, (base, *_), _), (_, (update, *_), _) = walk(plain, params, gradients), walk(scaled, params, gradients)
  for path, value in params.items():
    factor = {"blocks/2": 0.5, "blocks/1": 0.25, "blocks/0": 0.25, "cls": 0.0}.get(path[:8].rstrip("/"), 1.0)
    kept = (
      -0.1 * value if decay == "independent" and path.endswith("kernel") else 0
    )  # this decay does not depend on the rate
    np.testing.assert_allclose(update[path], factor * (base[path] - kept) + kept, rtol=1e-5, atol=1e-7)


@pytest.mark.heavy
def test_layer_decay_reduces_rates_from_head_to_embedding():
  params, gradients = example()
  _, (base, *_), _ = walk(make(params)[0], params, gradients)
  _, (update, *_), _ = walk(make(params, layer_decay=0.5)[0], params, gradients)
  power = {"head/kernel": 0, "head/bias": 0, "norm/scale": 0, "cls": 4, "embedding/kernel": 4, "position/table": 4}
  for path in params:
    exponent = power[path] if path in power else 3 - int(path.split("/")[1])
    np.testing.assert_allclose(update[path], 0.5**exponent * base[path], rtol=1e-6, err_msg=path)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_scanned_layers_have_the_same_rates_and_ratios(name):
  unrolled, unrolled_gradients = example()

  def stack(flat):
    paths = sorted({p.split("/", 2)[2] for p in flat if p.startswith("blocks/")})
    rest = {p: v for p, v in flat.items() if not p.startswith("blocks/")}
    return rest | {f"blocks/{p}": jnp.stack([flat[f"blocks/{i}/{p}"] for i in range(3)]) for p in paths}

  scanned = stack(unrolled)
  args = {"name": name, "layer_decay": 0.7, "weight_decay": 0.1, "lr_multipliers": (("head/.*", 3.0),), "clip": 0.2}
  expected, _, _ = walk(make(unrolled, **args)[0], unrolled, unrolled_gradients)
  after, _, _ = walk(make(scanned, **args)[0], scanned, [stack(g) for g in unrolled_gradients])
  for path, value in stack(expected).items():
    np.testing.assert_allclose(after[path], value, rtol=1e-5, atol=1e-7)


@pytest.mark.heavy
@pytest.mark.parametrize("name", optim.RULES)
@pytest.mark.parametrize("frozen", [(), ("blocks/.*", "cls")])
def test_state_arrays_are_mapped_to_their_parameters(name, frozen):
  params, _ = example()
  transformation, _ = make(params, name=name, frozen=frozen, clip=1.0, weight_decay=0.1)
  shapes = jax.eval_shape(transformation.init, params)
  marked = optax.tree_utils.tree_map_params(
    transformation,
    # A MaskedNode replaces a frozen parameter.
    lambda leaf, path: leaf if isinstance(leaf, optax.MaskedNode) else path,
    shapes,
    {path: path for path in params},
    transform_non_params=lambda _: "none",
    is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )
  assert jax.tree.structure(marked) == jax.tree.structure(shapes)
  held = optim.list_paths_without_gradients(frozen, params)
  marks = trees.flatten(marked)
  assert set(marks.values()) == ({*params} - held) | {"none"}
  for path, leaf in trees.flatten(shapes).items():
    mark = marks[path]
    assert path.endswith(mark) or (mark == "none" and leaf.shape in ((), (3,)))  # Muon keeps its three coefficients
    assert mark == "none" or leaf.shape in (params[mark].shape, (1,))


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in optim.RULES if name != "muon"])  # Muon requires blocks
def test_module_states_and_nested_and_flat_dicts_train_alike(name):
  state = nnx.split(nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(1))))[1]
  gradient = jax.tree.map(lambda x: 0.1 + jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), state)
  args = {"name": name, "weight_decay": 0.1, "clip": 1.0, "frozen": ("layers/1/bias",)}
  args["lr_multipliers"] = (("layers/0/.*", 0.3),)
  results = []
  for view in (lambda x: x), nnx.to_pure_dict, trees.flatten:
    params = view(state)
    after, _, _ = walk(make(params, **args)[0], params, [view(gradient)] * 3)
    results.append(trees.flatten(after))
  for path, value in results[0].items():
    assert np.any(value != trees.flatten(state)[path]) == (path != "layers/1/bias")
    np.testing.assert_array_equal(value, results[1][path])
    np.testing.assert_array_equal(value, results[2][path])


# Errors.


@pytest.mark.parametrize(
  ("args", "message"),
  [
    ({"frozen": ("head/kernal",)}, r"frozen\[0\]: 'head/kernal' matches no parameter.*Nearest: head/kernel"),
    ({"frozen": ("head",)}, r"'head' matches no parameter.*whole path"),
    ({"frozen": ("backbone/.*",)}, r"""All but the head: --config\.optim\.frozen='\["\(\?!head\)\.\*"\]'$"""),
    ({"lr_multipliers": (("backbone", 1.0),)}, r"Nearest: [^ ]+(, [^ ]+)*$"),
    ({"frozen": (".*",)}, r"config\.optim\.frozen: .*no parameter would be trained"),
    ({"lr_multipliers": (("cls", 1.0), ("block/.*", 0.1))}, r"lr_multipliers\[1\]: 'block/\.\*'.*Nearest: blocks/"),
    ({"weight_decay": 0.1, "decay_on": ((".*/kernels", 1.0),)}, r"decay_on\[0\]"),
    ({"decay_on": ((".*kernel", 1.0), ("head/kernel", 5.0)), "weight_decay": 0.1}, r"decay_on\[1\].*Put it first"),
    ({"warmup": "11"}, r"config\.optim\.warmup: 11 steps, but the run has 10"),
    (
      {"schedule": {"name": "rsqrt", "cooldown": "8"}, "warmup": "3"},
      r"config\.optim\.schedule\.cooldown: .*do not fit a run of 10",
    ),
    ({"schedule": {"name": "cosin"}}, r"config\.optim\.schedule\.name: unknown name 'cosin'. Did you mean 'cosine'"),
    ({"schedule": {"name": "cosine", "stop": 1.0}}, r"config\.optim\.schedule\.stop: unknown key"),
    ({"name": "adam"}, "Did you mean 'adamw'"),
    ({"momentum": 0.9}, r"config\.optim\.momentum: unknown key for 'adamw'"),
    ({"lr": 0.0}, r"config\.optim\.lr: 0\.0 is out of range"),
    ({"decay": "times_lrs"}, r"config\.optim\.decay: 'times_lrs' is not a choice. Did you mean 'times_lr'"),
    ({"mu_dtype": "float16"}, "'float16' is not a choice"),
    ({"layer_decay": 0.0}, "out of range"),
  ],
)
def test_invalid_arguments_are_errors_with_a_fix(args, message):
  with pytest.raises(ConfigError, match=message):
    make(example()[0], **args)


def test_layer_decay_needs_equal_blocks():
  choice = bound("adamw", {"lr": 1e-2, "layer_decay": 0.5})
  with pytest.raises(ConfigError, match=r"config\.optim\.layer_decay: .*Use lr_multipliers"), enter_key("config.optim"):
    optim.create_optimizer(choice, example()[0], 10, lambda duration: 1)


def test_layer_decay_names_a_parameter_outside_the_order_of_layers():
  choice = bound("adamw", {"lr": 1e-2, "layer_decay": 0.5})
  paths = list(example()[0])
  above = dict.fromkeys(paths, 0) | {paths[1]: None}
  with pytest.raises(
    ConfigError, match=rf"does not include the parameter '{paths[1]}'\. Pass order= to register\.model"
  ):
    optim.create_optimizer(choice, example()[0], 10, lambda duration: 1, layers_above=above)
  optim.create_optimizer(bound("adamw", {"lr": 1e-2}), example()[0], 10, lambda duration: 1, layers_above=above)


def test_bound_choice_has_every_default_and_binds_to_itself():
  choice = bound("lion", {"lr": 1, "schedule": {"name": "rsqrt"}})
  assert choice.args["lr"] == 1.0 and choice.args["b2"] == 0.99 and choice.args["layer_decay"] is None
  assert choice.args["schedule"].args["timescale"] == "10k"
  assert bound("lion", choice.args) == choice


@pytest.mark.heavy
@pytest.mark.parametrize("name", optim.RULES)
def test_zero_gradients_do_not_change_parameters(name):
  params, gradients = example()
  zeros = [jax.tree.map(jnp.zeros_like, g) for g in gradients]
  ratio = {"trust_ratio": "all"} if name == "lamb" else {}  # the ratio is 1 for a parameter without an update
  after, _, _ = walk(make(params, name=name, clip=1.0, **ratio)[0], params, zeros)
  jax.tree.map(np.testing.assert_array_equal, after, params)


@pytest.mark.heavy
@pytest.mark.parametrize("decay", ["times_lr", "independent"])
def test_scheduled_weight_decay_follows_its_formula_at_each_step(decay):
  params, gradients = example()
  total, end = 8, 0.4
  values = end + 0.5 * (0.04 - end) * (1 + np.cos(np.pi * np.arange(len(gradients)) / total))
  args = {"decay": decay, "decay_on": ((".*kernel", 1.0), ("cls", 0.5)), "total": total, "lr": 0.1}
  schedule = Choice("cosine", {"end": end})
  scheduled = make(params, weight_decay=0.04, weight_decay_schedule=schedule, **args)[0]
  state = scheduled.init(params)
  plain = make(params, weight_decay=0.0, **{key: args[key] for key in ("decay", "total", "lr")})[0]
  plain_state = plain.init(params)
  for value, gradient in zip(values, gradients, strict=True):
    update, state = jax.jit(scheduled.update)(gradient, state, params)
    without, plain_state = plain.update(gradient, plain_state, params)
    for path, p in params.items():
      share = 1 if path.endswith("kernel") else 0.5 if path == "cls" else 0
      expected = without[path] - (0.1 if decay == "times_lr" else 1) * value * share * p
      np.testing.assert_allclose(update[path], expected, rtol=1e-5, atol=1e-7, err_msg=path)
    params = optax.apply_updates(params, update)


@pytest.mark.heavy
def test_weight_decay_may_start_at_zero():
  params, gradients = example()
  schedule = Choice("cosine", {"end": 0.4})
  _, updates, _ = walk(make(params, weight_decay_schedule=schedule)[0], params, gradients)
  _, expected, _ = walk(make(params)[0], params, gradients)
  np.testing.assert_array_equal(updates[0]["head/kernel"], expected[0]["head/kernel"])
  assert not np.allclose(updates[4]["head/kernel"], expected[4]["head/kernel"])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_delayed_parameter_is_constant_while_its_moments_update(name):
  params, gradients = example()
  args = {"name": name, "weight_decay": 0.1, "clip": 0.5, "frozen": ("cls",)}
  delayed, _ = make(params, delay=(("head/kernel", "3"), ("head/.*", "20%"), ("norm/.*", "0")), **args)
  plain, _ = make(params, **args)
  after, updates, state = walk(delayed, params, gradients)
  _, expected, plain_state = walk(plain, params, gradients)
  for step, (update, other) in enumerate(zip(updates, expected, strict=True)):
    assert (step >= 3) == np.any(update["head/kernel"]) and (step >= 2) == np.any(update["head/bias"])
    if step == 0:
      np.testing.assert_array_equal(update["norm/scale"], other["norm/scale"])
  # The gradients do not depend on the parameters here, so the moments are equal.
  moments = {p: v for p, v in trees.flatten(state).items() if "head/kernel" in p}
  for path, value in moments.items():
    np.testing.assert_array_equal(value, trees.flatten(plain_state)[path])
  assert moments and np.any(after["head/kernel"] != params["head/kernel"])


@pytest.mark.heavy
def test_unused_options_leave_state_and_program_unchanged():
  params, gradients = example()
  args = {"weight_decay": 0.1, "clip": 0.5}
  plain, _ = make(params, **args)
  spelled, _ = make(params, weight_decay_schedule=Choice("constant"), delay=(), clip_by="global", **args)
  texts = [jax.jit(each.update).lower(gradients[0], each.init(params), params).as_text() for each in (plain, spelled)]
  assert texts[0] == texts[1] and "sin" not in texts[0]
  counts = [value for value in jax.tree.leaves(plain.init(params)) if value.shape == ()]
  assert len(counts) == 2  # the counts of Adam and of the learning rate


def test_delay_until_the_end_of_the_run_is_an_error():
  with pytest.raises(ConfigError, match=r"config.optim.delay\[1\]: 10 steps, but the run has 10"):
    make(example()[0], delay=(("cls", "2"), ("head/.*", "100%")))
