"""Names that other frameworks use, with the equivalent names of this package. Error messages use them for suggestions.

A suggestion is never applied automatically. A config that contains a name of another framework is an error.
"""

from collections.abc import Collection

# Keys of a config: {name in another framework: (key here, example of its value)}.
KEYS: dict[str, tuple[str, str]] = {
  **dict.fromkeys(
    ("learning_rate", "lr", "base_lr", "blr", "max_lr", "peak_lr", "learningrate", "init_lr"), ("optim.lr", "1e-3")
  ),
  **dict.fromkeys(("min_lr", "end_lr", "final_lr", "lr_min"), ("optim.schedule.end", "1e-5")),
  **dict.fromkeys(
    ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "total_epochs", "epoch"), ("total", "90ep")
  ),
  **dict.fromkeys(
    ("steps", "num_steps", "total_steps", "max_steps", "train_steps", "num_train_steps", "iterations", "max_iters"),
    ("total", "10k"),
  ),
  **dict.fromkeys(
    ("batch_size", "batchsize", "bs", "global_batch_size", "train_batch_size", "per_device_train_batch_size"),
    ("batch", "128"),
  ),
  **dict.fromkeys(("weight_decay", "wd", "weightdecay"), ("optim.weight_decay", "0.05")),
  **dict.fromkeys(("warmup_steps", "num_warmup_steps", "warmup_iters", "warmup"), ("optim.warmup", "500")),
  **dict.fromkeys(("warmup_epochs", "warmup_epoch", "warmup_ratio"), ("optim.warmup", "5ep")),
  **dict.fromkeys(("optimizer", "opt", "optimizer_name", "optim_name"), ("optim.name", "adamw")),
  **dict.fromkeys(
    ("scheduler", "sched", "lr_scheduler", "lr_schedule", "lr_scheduler_type", "schedule", "decay_type"),
    ("optim.schedule.name", "cosine"),
  ),
  **dict.fromkeys(("momentum", "sgd_momentum"), ("optim.momentum", "0.9")),
  **dict.fromkeys(("beta1", "adam_beta1", "b1"), ("optim.b1", "0.9")),
  **dict.fromkeys(("beta2", "adam_beta2", "b2"), ("optim.b2", "0.999")),
  **dict.fromkeys(("adam_epsilon", "opt_eps", "epsilon"), ("optim.eps", "1e-8")),
  **dict.fromkeys(
    ("grad_clip", "clip_grad", "gradient_clip", "grad_clip_norm", "clip_grad_norm", "max_grad_norm", "clip_norm",
     "gradient_clip_val", "max_norm"),
    ("optim.clip", "1.0"),
  ),
  **dict.fromkeys(
    ("accum", "accum_iter", "accumulate", "grad_accum", "grad_accum_steps", "gradient_accumulation_steps", "iter_size"),
    ("optim.accumulate", "4"),
  ),
  **dict.fromkeys(("ema_decay", "ema", "model_ema", "model_ema_decay", "ema_rate"), ("optim.ema", "0.9999")),
  **dict.fromkeys(("layer_decay", "layerwise_lr_decay", "layer_lr_decay"), ("optim.layer_decay", "0.75")),
  **dict.fromkeys(("freeze", "frozen", "freeze_layers"), ("optim.frozen", '["blocks/.*"]')),
  **dict.fromkeys(
    ("image_size", "img_size", "imgsize", "crop_size", "input_size", "resolution", "res", "crop_pct_size"),
    ("data.image_size", "224"),
  ),
  **dict.fromkeys(
    ("data_dir", "data_path", "data_root", "datadir", "dataset_path", "dataset_dir", "root", "train_dir", "path",
     "imagefolder", "input_dir"),
    ("data.path", "DIR"),
  ),
  **dict.fromkeys(("dataset", "dataset_name", "data_name", "data_set", "task_name"), ("data.name", "folder")),
  **dict.fromkeys(("val_split", "validation_split", "valid_split"), ("data.val", "train[90%:]")),
  **dict.fromkeys(("train_split",), ("data.train", "train[:90%]")),
  **dict.fromkeys(("test_split", "eval_split"), ("data.test", "test")),
  **dict.fromkeys(
    ("num_workers", "workers", "n_workers", "dataloader_num_workers", "loader_workers", "num_proc"),
    ("data.workers", "4"),
  ),
  **dict.fromkeys(("prefetch", "prefetch_factor", "prefetch_batches"), ("data.prefetch", "4")),
  **dict.fromkeys(("mixup", "mixup_alpha", "mixup_p"), ("data.mixing.name", "mixup")),
  **dict.fromkeys(("cutmix", "cutmix_alpha", "cutmix_p"), ("data.mixing.name", "cutmix")),
  **dict.fromkeys(("auto_augment", "aa", "autoaugment", "augmentation"), ("data.policy.name", "autoaugment")),
  **dict.fromkeys(("rand_augment", "randaugment", "randaug", "ra"), ("data.policy.name", "randaugment")),
  **dict.fromkeys(("random_erasing", "reprob", "random_erase", "erasing"), ("data.erasing.name", "random")),
  **dict.fromkeys(("hflip", "horizontal_flip", "flip"), ("data.flip", "true")),
  **dict.fromkeys(("crop_pct",), ("data.test_crop.name", "centre")),
  **dict.fromkeys(("mean", "image_mean"), ("data.mean", "(0.485,0.456,0.406)")),
  **dict.fromkeys(("std", "image_std"), ("data.std", "(0.229,0.224,0.225)")),
  **dict.fromkeys(("arch", "architecture", "model_name", "backbone", "network", "variant", "encoder"),
                  ("model.name", "ViT-S/16")),
  **dict.fromkeys(("dropout", "drop", "drop_rate", "dropout_rate", "proj_drop"), ("model.dropout", "0.1")),
  **dict.fromkeys(("attn_drop", "attention_dropout", "attn_dropout", "attn_drop_rate", "attention_dropout_rate"),
                  ("model.attention_dropout", "0.1")),
  **dict.fromkeys(("drop_path", "drop_path_rate", "stochastic_depth", "stoch_depth", "droppath", "sd_prob"),
                  ("model.stochastic_depth", "0.1")),
  **dict.fromkeys(
    ("precision", "dtype", "amp", "bf16", "fp16", "mixed_precision", "compute_dtype", "amp_dtype", "half"),
    ("model.dtype", "bfloat16"),
  ),
  **dict.fromkeys(("embed_dim", "hidden_size", "dim", "width", "hidden_dim"), ("model.width", "384")),
  **dict.fromkeys(("num_layers", "depth", "n_layers", "num_hidden_layers", "layers"), ("model.depth", "12")),
  **dict.fromkeys(("num_heads", "heads", "n_heads", "num_attention_heads"), ("model.heads", "6")),
  **dict.fromkeys(("mlp_dim", "intermediate_size", "mlp_width"), ("model.hidden", "1536")),
  **dict.fromkeys(("pooling", "global_pool", "pool_type", "pool"), ("model.pool", "gap")),
  **dict.fromkeys(("grad_checkpointing", "gradient_checkpointing", "checkpointing", "remat", "use_checkpoint"),
                  ("model.remat", "full")),
  **dict.fromkeys(("label_smoothing", "smoothing", "ls", "label_smoothing_factor"), ("task.label_smoothing", "0.1")),
  **dict.fromkeys(("loss", "criterion", "loss_type"), ("task.loss", "softmax")),
  **dict.fromkeys(
    ("pretrained", "checkpoint_path", "weights", "init_from", "pretrain", "finetune", "load_from", "init_checkpoint",
     "pretrained_path", "model_init", "ckpt", "initial_checkpoint", "pretrained_model_name_or_path", "restore_from"),
    ("init.from", "PATH"),
  ),
  **dict.fromkeys(("random_seed", "manual_seed", "rng_seed", "seed"), ("seed", "1")),
  **dict.fromkeys(
    ("save_every", "save_interval", "ckpt_steps", "save_steps", "checkpoint_every", "save_freq", "ckpt_every"),
    ("checkpoint.every", "1k"),
  ),
  **dict.fromkeys(("keep_checkpoints", "save_total_limit", "keep_ckpt"), ("checkpoint.keep", "3")),
  **dict.fromkeys(("log_every", "log_interval", "logging_steps", "log_steps", "print_freq", "log_freq"),
                  ("log.every", "50")),
  **dict.fromkeys(("eval_every", "eval_interval", "eval_steps", "val_interval", "eval_freq"),
                  ("evals.test.every", "10%")),
  **dict.fromkeys(("fsdp", "zero", "shard"), ("mesh.fsdp", "-1")),
  **dict.fromkeys(("tensor_parallel", "tp", "model_parallel"), ("mesh.tensor", "2")),
}  # fmt: skip
# Names that correspond to a flag of the command and not to a key of a config: {name elsewhere: flag here}.
FLAGS: dict[str, str] = {
  **dict.fromkeys(
    ("output_dir", "output", "log_dir", "logdir", "out_dir", "save_dir", "work_dir", "exp_dir", "checkpoint_dir",
     "ckpt_dir", "run_dir", "results_dir", "default_root_dir", "model_dir", "workdir", "outdir"),
    "--workdir=DIR",
  ),
  **dict.fromkeys(("config_file", "cfg", "conf", "recipe"), "--config=FILE"),
  **dict.fromkeys(("profiler", "trace", "profile"), "--profile=STEPS"),
}  # fmt: skip
# Names without a key here, with the reason.
REMARKS: dict[str, str] = {
  "target": "Write both flags: --config.log.target.metric=test/top1 --config.log.target.value=0.9",
  **dict.fromkeys(
    ("num_classes", "n_classes", "classes", "nb_classes", "num_labels", "n_class"),
    "The number of classes is determined by the data. Remove this key",
  ),
  **dict.fromkeys(
    ("resume", "resume_from", "resume_from_checkpoint", "auto_resume", "checkpoint", "restart"),
    "The same command with the same --workdir resumes a run; --config.init.from=PATH starts from weights",
  ),
  **dict.fromkeys(
    ("device", "devices", "gpus", "num_gpus", "gpu", "n_gpu", "gpu_id", "accelerator", "num_devices", "ngpus"),
    "All devices are used; JAX_PLATFORMS=cpu, CUDA_VISIBLE_DEVICES and --config.mesh restrict or divide them",
  ),
  **dict.fromkeys(
    ("wandb", "use_wandb", "report_to", "tracker", "mlflow", "wandb_project"),
    "Send a run to a tracker with: python -m vit_jax.report --export=wandb WORKDIR",
  ),
  **dict.fromkeys(
    ("distributed", "world_size", "local_rank", "rank", "nproc_per_node", "nodes", "num_nodes", "dist_url"),
    "VITJAX_PROCESSES sets the number of hosts, see docs/guides/ssh-hosts.md",
  ),
  **dict.fromkeys(
    ("teacher", "teacher_model", "teacher_path"),
    "A teacher is part of a task: --config.task.name=distill --config.task.teacher=PATH",
  ),
  **dict.fromkeys(("patch_size", "patch"), "The patch size is part of the model's name: --config.model.name=ViT-S/16"),
}  # fmt: skip
# Numbers elsewhere that correspond to a choice with an argument here: {name elsewhere: (choice, key of the number)}.
NUMBERS: dict[str, tuple[str, str]] = {
  **dict.fromkeys(("mixup", "mixup_alpha"), ("mixup", "data.mixing.alpha")),
  **dict.fromkeys(("cutmix", "cutmix_alpha"), ("cutmix", "data.mixing.alpha")),
  "mixup_p": ("mixup", "data.mixing.probability"),
  "cutmix_p": ("cutmix", "data.mixing.probability"),
  **dict.fromkeys(("rand_augment", "randaugment", "randaug", "ra"), ("randaugment", "data.policy.magnitude")),
  **dict.fromkeys(("random_erasing", "reprob", "random_erase", "erasing"), ("random", "data.erasing.probability")),
  "crop_pct": ("torchvision", "data.test_crop.ratio"),
}
# Values of a key here: {key: {value elsewhere: value here}}.
VALUES: dict[str, dict[str, str]] = {
  "model.dtype": {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "32": "float32", "float32": "float32"},
  "model.pool": {"avg": "gap", "mean": "gap", "token": "cls"},
}
# Groups of keys: {name elsewhere: group here}.
GROUPS: dict[str, str] = {
  **dict.fromkeys(("optimizer", "optimiser", "opt", "optimization"), "optim"),
  **dict.fromkeys(("dataset", "datasets", "dataloader", "data_loader", "input", "datamodule"), "data"),
  **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule", "schedule"), "optim.schedule"),
  **dict.fromkeys(("augmentation", "augment", "transform", "transforms", "aug"), "data"),
  **dict.fromkeys(("net", "network", "backbone", "arch", "encoder"), "model"),
  **dict.fromkeys(("evaluation", "evaluations", "eval", "evaluators"), "evals"),
  **dict.fromkeys(("ckpt", "checkpointing", "checkpoints"), "checkpoint"),
  **dict.fromkeys(("logging", "logger"), "log"),
  **dict.fromkeys(("loss", "criterion", "objective"), "task"),
  **dict.fromkeys(("parallel", "sharding", "distributed"), "mesh"),
}
# Descriptions of the values that a recipe requires from the user.
WANTED: dict[str, str] = {
  "init.from": "the weights to start from, a workdir or a file such as B_16.npz",
  "data.path": "the folder, files or bucket with the data",
  "path": "the folder, files or bucket with the data",
  "data.name": "a dataset; see docs/guides/datasets.md",
  "model.name": "a model such as ViT-S/16",
  "model": "a model: dict(name='ViT-S/16')",
  "data": "a dataset: dict(name='folder', path=...)",
  "optim": "an optimizer: dict(name='adamw', lr=1e-3)",
  "total": "the length of training, such as '90ep' or '10k' steps",
  "batch": "the number of images in a step, such as 128",
  "optim.lr": "the learning rate, such as 1e-3",
}


def get_last_word(key: str) -> str:
  """Returns the last word of a dotted key or a flag, spelled as in the tables of this module."""
  return key.lstrip("-").partition("=")[0].rpartition(".")[2].lower().replace("-", "_")


def find_equivalent(key: str, allowed: Collection[str]) -> str | None:
  """Returns the allowed key that corresponds to a key of another framework, or None.

  Args:
    key: a key or flag of another framework.
    allowed: the keys that are allowed at this place.
  """
  target = KEYS.get(get_last_word(str(key)), ("",))[0].rpartition(".")[2]
  return target if target in allowed else None


def find_example(key: str) -> str:
  """Returns an example of the value of a key, or "" if this module contains no example."""
  key = key.removeprefix("config.")
  return next((text for target, text in KEYS.values() if target == key and text not in ("PATH", "DIR")), "")


def describe_value(key: str) -> str | None:
  """Returns a description of the value of a key without a default, or None if the key is unknown."""
  words = key.removeprefix("config.").split(".")
  return next((WANTED[tail] for i in range(len(words)) if (tail := ".".join(words[i:])) in WANTED), None)
