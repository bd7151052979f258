"""Paths of the parameters and statistics of self-distillation in a state."""

HEAD = "task/head"
PATCH_HEAD = "task/patch_head"
CENTER = "task/center"
PATCH_CENTER = "task/patch_center"
TOKEN = "task/mask_token"
