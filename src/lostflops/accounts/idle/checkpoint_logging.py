"""The CPU writes checkpoints or logs."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

CHECKPOINT_LOGGING = Account(
    "idle.checkpoint_logging",
    label="checkpoints, logging",
    noun="checkpoints and logging",
    said_by_group=WHILE,
    meaning=LATE + "writes checkpoints or logs.",
    found="Ranges and frames on that thread that are named after saving or logging.",
    remedy="Save in the background (`torch.distributed.checkpoint.async_save`, which needs a CPU backend "
    "beside NCCL: `cpu:gloo,cuda:nccl`) or less often, and log less often.",
    order=30,
    verdict="Held up by checkpoints or logging",
    makes_late="its checkpoints or logging make",
    spent="of checkpoints or logging",
    loss=Loss(
        "checkpoint-inside-step",
        "while the CPU saves a checkpoint or logs",
        0.01,
        takes_copies=True,
        remedies=("async-checkpoint",),
        also=("log-less",),
        edit="host:checkpoint-logging=0ms",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("frame",),
            ("torch/serialization.py", "torch/distributed/checkpoint/"),
            "PyTorch, saving and loading of state; activation checkpointing lives elsewhere",
            "torch/serialization.py(943): save",
            also=r"torch/serialization\.py\(\d+\): (?:save|_save|_legacy_save|load|_load|_legacy_load)$"
            r"|torch/distributed/checkpoint/",
        ),
        CausePattern(
            ("frame",),
            ("checkpoint", "safetensors/"),
            "Megatron, DeepSpeed, Lightning, Transformers, Accelerate and safetensors, saving of state",
            "megatron/training/checkpointing.py(440): save_checkpoint",
            also=r"megatron/(?:training/checkpointing\.py|core/dist_checkpointing/)"
            r"|deepspeed/runtime/checkpoint_engine/"
            r"|: _?save_(?:checkpoint|model|pretrained)$|accelerate/checkpointing\.py|"
            r"safetensors/torch\.py\(\d+\): save",
        ),
        CausePattern(
            ("frame",),
            ("snapshot", "save_", "dump_", "write_"),
            "training scripts, functions that save the model's or the training's state",
            "train.py(97): save_state",
            also=r"\.py\(\d+\): _?(?:(?:take|make|save|dump|write)_)?(?:training_|trainer_|model_|state_)?"
            r"snapshot$"
            r"|\.py\(\d+\): _?(?:save|dump|write)_(?:training_|trainer_|model_|optimizer_)?"
            r"(?:state|states|state_dict|ckpt|checkpoints|weights)$",
        ),
        CausePattern(
            ("frame",),
            (
                "logging/__init__.py",
                "tqdm/",
                "rich/",
                "wandb/",
                "tensorboard",
                "mlflow/",
                "comet_ml/",
                "neptune/",
                "clearml/",
            ),
            "Python's logging, progress bars and experiment trackers, without the threads that they keep",
            "logging/__init__.py(1529): info",
            # A logger is asked for its level where nothing is logged, too, as by each backward pass.
            also=r"(?!.*: (?:run|getEffectiveLevel|isEnabledFor)$)"
            r"(?:(?:^|/)(?:logging/__init__\.py\(|tqdm/(?:std|asyncio|utils)\.py"
            r"|(?:rich|wandb|tensorboardX?|mlflow|comet_ml|neptune|clearml)/)|torch/utils/tensorboard/)",
        ),
        CausePattern(
            ("frame",),
            ("<built-in",),
            "Python, print",
            "<built-in function print>",
            also=r"^<built-in (?:function print>|method write of _io\.TextIOWrapper)",
        ),
        CausePattern(
            ("range",),
            (
                "save_checkpoint",
                "save-checkpoint",
                "checkpoint_save",
                "checkpoint save",
                "checkpoint.save",
                "torch.save",
                "safetensors.save_",
                "save_model",
                "wandb",
                "tensorboard",
            ),
            "ranges that name their work: Megatron, training scripts",
            "save-checkpoint",
        ),
        CausePattern(
            ("range",),
            ("log", "Log", "LOG"),
            "training scripts' phases that log",
            "logging",
            also=r"^(?i:(?:do[ _-])?log(?:ging|s)?(?:[ _.:/-]*(?:metrics?|loss(?:es)?|stats|scalars|step|"
            r"train(?:ing)?))*|(?:train(?:ing)?|metrics?|loss)[ _.:/-]*log(?:ging)?)$",
        ),
        CausePattern(
            ("range",),
            ("sav", "Sav", "writ", "Writ", "dump", "Dump"),
            "training scripts' phases that save the model's or the training's state",
            "save state",
            also=r"^(?i:(?:sav(?:e|ing)|writ(?:e|ing)|dump(?:ing)?)[ _.:/-]*(?:the[ _-])?"
            r"(?:(?:train(?:ing|er)?|model|optimi[sz]er)[ _-]*)?"
            r"(?:state|states|state_?dict|ckpt|checkpoints?|weights|snapshot|model)(?:[ _.:#/-]*\d+)?)$",
        ),
        CausePattern(
            ("range",),
            ("[Callback]ModelCheckpoint",),
            "Lightning's profiler, around the callback that saves",
            "[pl][profile][Callback]ModelCheckpoint{'monitor': None, 'mode': 'min'}.on_train_batch_end",
        ),
    ),
)
