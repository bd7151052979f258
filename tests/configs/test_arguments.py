"""Arguments of configs that no recipe has: the value, and what is allowed."""

import pytest

from tests import recipes
from vit_jax import schema

MISTAKES = [  # a config with its argument, what of it is wrong, what is allowed
  ("finetune:mnist", "'mnist'", "imagenet, cifar10, cifar100, pets, flowers, resisc45, kitti, digits, folder"),
  ("finetune:pets,ViT-B/16,384,1", "'pets,ViT-B/16,384,1'", "pets,ViT-B/16,384"),
  ("finetune:digits,ViT-B/16,big", "'digits,ViT-B/16,big'", "digits,cct_2_3x2_32,48"),
  ("vit_s16_i1k:60ep", "'60ep'", "90ep, 150ep, 300ep"),
  ("algoperf_vit:6", "'6'", "1, 2, 3, 4, 5"),
  ("vit_i1k:B/8", "'B/8'", "Ti/16, S/32, S/16, B/32, B/16, L/16"),
  ("vit_i1k:B/16,strong3", "'strong3'", "none, light1"),
  ("vit_i1k:B/16,", "augmentation ''", "none, light1"),
  ("vit_i21k:Ti/16", "'Ti/16'", "B/32, B/16, L/32, L/16"),
  ("vit_i21k:L/32,augreg", "'L/32'", "Allowed for augreg: Ti/16, S/32"),
  ("vit_i21k:L/16,paper", "'paper'", "L/16,augreg, or L/16 for the recipe"),
  ("vit_jft:G/14", "'G/14'", "B/32, B/16, L/32, L/16, H/14"),
  ("vit_jft:H/14,7ep", "'7ep' of H/14", "14ep"),
  ("vit_g_jft:e/14", "'e/14'", "g/14, G/14"),
  ("vit_mpp:cifar10", "'cifar10'", "jft, imagenet21k, imagenet, digits"),
  ("vit_mpp:jft,H/14", "'H/14'", "Ti/16, S/16, B/16, L/16"),
  ("mae:S/16", "'S/16'", "B/16, L/16, H/14, digits"),
  ("mae:B/16,400ep", "'400ep'", "800ep, 1600ep, finetune"),
  ("dino:B/16,400", "'B/16,400'", "S/16,100, S/16,300, S/16,800, glyphs"),
  ("dinov2:B/14,lvd", "'B/14,lvd'", "L/16,i1k, L/14,lvd, g/14,lvd, L/14,highres, g/14,highres, folder, glyphs"),
  ("dinov3:7B/16", "'7B/16'", "L/16,i1k"),
  ("noisy_student:imagenet", "'imagenet'", "digits,teacher, digits,student, imagenet,teacher, imagenet,student"),
  ("deit:L", "'L'", "Ti, S, B"),
  ("deit3:Ti,i1k,400", "'Ti,i1k,400'", "S,i1k,400, B,i1k,400"),
  ("deit3:B,i1k,300", "'B,i1k,300'", "B,i1k,400"),
  ("deit3:B,i1k,400,224,1", "'B,i1k,400,224,1'", "B,i1k,400"),
  ("deit3:H,i1k,800,384", "'384'", "224"),
  ("deit3:S,i1k,400,224", "S,i1k,400 has no published fine-tuning at '224'", "nothing"),
  ("rope_vit:S,learned", "'S,learned'", "S,axial, S,mixed, S,axial_ape"),
  ("rope_vit:S,mixed,224", "'S,mixed,224'", "with an additional ,224 for B and L"),
  ("rope_vit:B,mixed,", "'B,mixed,'", "B,mixed"),
  ("vit5:H", "'H'", "also with an additional ,224: S, B, L"),
  ("vit5:B,384", "'B,384'", "also with an additional ,224: S, B, L"),
  ("cct_cifar:cct_14_7x2_224", "'cct_14_7x2_224'", "vit_2_4_32"),
  ("cct_cifar:cct_7_3x1_32,mnist", "'cct_7_3x1_32,mnist'", "cifar10,300, cifar10,1500, cifar10,5000, cifar100,300"),
  ("cct_cifar:cct_7_3x1_32,cifar10,200", "'cct_7_3x1_32,cifar10,200'", "cifar10,300, cifar10,1500"),
  ("cct_cifar:cct_7_3x1_32,cifar10,300,1", "'cct_7_3x1_32,cifar10,300,1'", "cifar10,300, cifar10,1500"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), MISTAKES)
def test_an_argument_that_no_recipe_has_is_one_clear_error(name, value, allowed):
  with pytest.raises(schema.ConfigError) as error:
    recipes.load(name)
  first, separator, last = str(error.value).partition(". ")
  assert first.startswith(f"--config: {recipes.path(name)}: ") and value in first
  assert separator and allowed in last
