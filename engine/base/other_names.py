"""Names that options of a training have in other frameworks, and what they are called here.

Messages about an unknown keyword, key of `run.toml` or option of a command end with a row of this
table.  It is the only place that knows these names.
"""

from __future__ import annotations

from typing import NamedTuple

# The one option of ours whose name differs by where it is given; messages name all of them.
LOSS_INPUTS = "loss_inputs (--loss-input in commands, loss_input_names in generate_artifacts)"


class Here(NamedTuple):
    """The meaning of a name of another framework in this package.

    call: in Python.
    key: in `run.toml` as TABLE.KEY, which `edgegrad train --set` takes too; empty: it has none.
    """

    call: str
    key: str = ""


_EPOCHS = Here("Trainer.fit(..., epochs=10)", "fit.epochs")
_VALIDATION = Here("Trainer.fit(..., validation=data or a share such as 0.2)", "data.validation")
_BATCH = Here("Trainer.fit(..., batch_size=32)", "data.batch_size")
_RATE = Here("the optimizer's, AdamW(lr=1e-3), or trainer.learning_rate", "optimizer.lr")
_SCHEDULE = Here('Trainer.fit(..., schedule="cosine")', "schedule.name")
_WARMUP = Here('Trainer.fit(..., schedule={"name": "cosine", "warmup": 0.1})', "schedule.warmup")
_CLIP = Here("the optimizer's, AdamW(clip_grad=1.0)", "optimizer.clip_grad")
_LOSS = Here('Trainer.from_onnx(model, loss="cross_entropy")', "model.loss")
_OPTIMIZER = Here('Trainer.from_onnx(model, loss, optimizer="adamw")', "optimizer.name")
_PROGRESS = Here("Trainer.fit(..., progress=False)")
_THREADS = Here("always the CPU; Trainer.from_onnx(..., threads=2) sets its threads", "fit.threads")
_PRECISION = Here('Trainer.from_onnx(..., precision="auto")', "fit.precision")
_DECAY = Here("the optimizer's, AdamW(weight_decay=0.01)", "optimizer.weight_decay")
_SIZE = Here("the dataset's, Images(folder, size=224)")
_EPOCH = Here("all samples of the data: train on data.subset(range(1000)) for fewer")
_WEIGHTS = Here('Trainer.fit(..., class_weight="balanced")', "fit.class_weight")
_FOLDER = Here('Trainer.fit(..., folder="run")', "output.folder")
_RESUME = Here('Trainer.fit(..., folder="run", resume=True)')
_STOPPING = Here("Trainer.fit(..., callbacks=[EarlyStopping(patience=3)])", "fit.patience")
_CALLBACKS = Here("Trainer.fit(..., callbacks=[...])")
_ACCUMULATE = Here("Trainer.fit(..., accumulate=4)", "fit.accumulate")
_SEED = Here("Trainer.fit(..., seed=0)", "fit.seed")
_KEEP = Here("Trainer.fit(..., keep=2), and keep_best=1 for the best", "fit.keep")
_MONITOR = Here('Trainer.fit(..., monitor="val_loss", mode="min")', "fit.monitor")
_BEST = Here('Trainer.fit(..., restore="best")', "fit.restore")
_DATA = Here("Trainer.fit((x, y)): inputs and targets are one argument", "data.path")
_FREEZE = Here('Trainer.from_onnx(..., train="head.*"), or Trainer.fit(..., unfreeze={...})')
_METRICS = Here('Trainer.fit(..., metrics=["accuracy"])', "fit.metrics")
_WORKERS = Here("edgegrad.batches(data, prefetch=2)", "data.prefetch")

_NAMES = {
    _EPOCHS: "n_epochs nb_epoch num_epochs max_epochs num_train_epochs",
    _VALIDATION: "validation_data validation_split validation_dataset validation_set val_data "
    "val_split val_dataset val_dataloaders eval_data eval_dataset eval_set test_size",
    _BATCH: "bs train_batch_size per_device_train_batch_size minibatch_size",
    _RATE: "lr learning_rate lr0 eta base_lr",
    _SCHEDULE: "scheduler lr_scheduler lr_scheduler_type lr_schedule cos_lr",
    _WARMUP: "warmup warmup_steps warmup_ratio warmup_epochs num_warmup_steps",
    _CLIP: "clip clip_grad clipnorm global_clipnorm grad_clip max_grad_norm gradient_clip_val "
    "clip_grad_norm",
    _LOSS: "criterion loss_fn loss_function loss_func compute_loss objective",
    _OPTIMIZER: "optim opt optimizers optimiser opt_func",
    _PROGRESS: "verbose verbosity silent quiet disable_tqdm enable_progress_bar progress_bar",
    _THREADS: "device devices accelerator gpu gpus use_cuda use_cpu no_cuda n_jobs nthreads "
    "num_threads",
    _DECAY: "weight_decay decay l2 l2_reg",
    _SIZE: "imgsz img_size image_size input_size target_size",
    _EPOCH: "steps_per_epoch limit_train_batches train_steps max_train_samples",
    _PRECISION: "amp fp16 bf16 precision mixed_precision autocast",
    _WEIGHTS: "class_weight class_weights pos_weight sample_weight",
    _FOLDER: "output_dir save_dir log_dir logdir run_dir default_root_dir checkpoint_dir",
    _RESUME: "resume_from_checkpoint ckpt_path initial_epoch",
    _STOPPING: "patience early_stopping early_stopping_patience early_stopping_rounds",
    _CALLBACKS: "callback loggers logger report_to",
    _ACCUMULATE: "gradient_accumulation_steps accumulate_grad_batches grad_accum "
    "accumulation_steps",
    _SEED: "random_state random_seed rng manual_seed",
    _KEEP: "save_top_k save_total_limit max_to_keep",
    _MONITOR: "metric_for_best_model greater_is_better",
    _BEST: "restore_best_weights load_best_model_at_end restore_best",
    _DATA: "x y X Y x_train y_train inputs targets train_dataset train_dataloader "
    "train_dataloaders training_data",
    _FREEZE: "freeze frozen freeze_backbone trainable requires_grad",
    _METRICS: "metric eval_metric compute_metrics",
    _WORKERS: "workers num_workers dataloader_num_workers",
}
HERE = {name: here for here, names in _NAMES.items() for name in names.split()}


def suggest_in_python(name: str) -> str:
    """Return the end of a message about an unknown keyword; empty: the name is not known."""
    return f"; here it is {HERE[name].call}" if name in HERE else ""


def suggest_pair(first: str) -> str:
    """Return the end of a message about one argument too many; empty: the first is not of data."""
    return "; inputs and targets are one argument, (x, y)" if first in ("train", "data") else ""


def suggest_in_toml(name: str) -> str:
    """Return the end of a message about an unknown key; empty: the name is not known."""
    here = HERE.get(name)
    if here is None:
        return ""
    if not here.key:
        return f"; here it is {here.call}"
    table, key = here.key.split(".")
    return f"; here it is {key!r} in [{table}]"


def suggest_in_command(option: str) -> str:
    """Return a sentence about an unknown option; empty: the name is not known."""
    here = HERE.get(option.lstrip("-").replace("-", "_"))
    if here is None:
        return ""
    return f"{option}: here it is {f'--set {here.key}=VALUE' if here.key else here.call}."
