"""Garbage collected seldom, and on all ranks at once."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="gc-freeze",
    does="Python's garbage collector runs when it is told to, in the same step on all ranks.",
    changes={
        "pytorch": Change(
            "After the start call `gc.collect()`, `gc.freeze()` and `gc.disable()`; then "
            "`gc.collect(1)` every few hundred steps, on all ranks in the same one, and no other "
            "`gc.collect()` in a step.",
            snippets=(
                python(
                    "gc.collect()",
                    "gc.freeze()",
                    "gc.disable()  # after the start",
                    "for step, batch in enumerate(loader):",
                    "    train_step(batch)",
                    "    if step % 500 == 0:",
                    "        gc.collect(1)  # on all ranks in the same step",
                ),
            ),
        ),
        "hf": Change(
            "In a callback: after the start `gc.freeze()` and `gc.disable()`, then "
            "`gc.collect(1)` every few hundred steps, on all ranks in the same one, and no other "
            "`gc.collect()` in a step. The Trainer has no flag for it.",
            snippets=(
                python(
                    "class CollectSeldom(TrainerCallback):",
                    "    def on_train_begin(self, args, state, control, **kwargs):",
                    "        gc.collect()",
                    "        gc.freeze()",
                    "        gc.disable()",
                    "",
                    "    def on_step_end(self, args, state, control, **kwargs):",
                    "        if state.global_step % 500 == 0:",
                    "            gc.collect(1)",
                ),
            ),
        ),
        "lightning": Change(
            "In a callback: after the start `gc.freeze()` and `gc.disable()`, then "
            "`gc.collect(1)` every few hundred steps, on all ranks in the same one, and no other "
            "`gc.collect()` in a step.",
            snippets=(
                python(
                    "class CollectSeldom(lightning.pytorch.Callback):",
                    "    def on_train_start(self, trainer, module):",
                    "        gc.collect()",
                    "        gc.freeze()",
                    "        gc.disable()",
                    "",
                    "    def on_train_batch_end(",
                    "        self, trainer, module, outputs, batch, batch_idx",
                    "    ):",
                    "        if batch_idx % 500 == 0:",
                    "            gc.collect(1)",
                ),
            ),
        ),
        "deepspeed": Change(
            "Turn the collector off: <no gc>.",
            snippets=(
                config('{"disable_python_gc": true}', since="deepspeed 0.18.10"),
                python(
                    "gc.freeze()  # after the start",
                    "gc.collect(1)  # every few hundred steps, on all ranks in the same one",
                    until="deepspeed 0.18.10",
                ),
            ),
        ),
        "megatron": Change(
            "`--manual-gc --manual-gc-interval 100`.",
            snippets=(shell("--manual-gc --manual-gc-interval 100"),),
            note="An interval of 0 never collects in training.",
        ),
        "bridge": Change(
            "`cfg.train.manual_gc = True` and `cfg.train.manual_gc_interval = 100`.",
            snippets=(python("cfg.train.manual_gc = True", "cfg.train.manual_gc_interval = 100"),),
            note="NeMo 2: the callback `GarbageCollectionCallback(gc_interval_train=100, "
            "gc_interval_val=100)`.",
        ),
        "torchtitan": Change(
            "Raise `training.gc_freq` (50).",
            snippets=(python("config.training.gc_freq = 500"),),
        ),
    },
    safety="bit-identical",
    costs="Cycles of objects live longer: watch the host's memory. Cycles that hold tensors keep "
    "device memory.",
    undo="Call `gc.unfreeze()` and `gc.enable()`.",
    seen="Garbage collections are gone from steps, and the ranks' lateness evens out.",
    recipe="idle_names",
    edit="host:garbage-collection=0ms",
)
