"""Logging less often."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="log-less",
    does="Values are logged every hundredth step, so that steps neither wait for them nor write them.",
    changes={
        "pytorch": Change(
            "Log every hundredth step, read the values (`.item()`) only then, and let a thread of its own "
            "write them.",
            snippets=(
                python(
                    '-logger.info("loss %f", loss.item())',
                    "+if step % 100 == 0:",
                    '+    logger.info("loss %f", loss.item())',
                ),
            ),
        ),
        "hf": Change(
            "A larger `logging_steps`.",
            snippets=(python("TrainingArguments(logging_steps=500)"),),
        ),
        "lightning": Change(
            "A larger `Trainer(log_every_n_steps=…)`.",
            snippets=(python("trainer = Trainer(log_every_n_steps=500)"),),
        ),
        "deepspeed": Change(
            'A larger `"steps_per_print"`.',
            snippets=(config('{"steps_per_print": 500}'),),
        ),
        "megatron": Change(
            "A larger `--log-interval`.",
            snippets=(shell("--log-interval 100"),),
        ),
        "bridge": Change(
            "A larger `cfg.logger.log_interval`.",
            snippets=(python("cfg.logger.log_interval = 100"),),
        ),
        "torchtitan": Change(
            "A larger `metrics.log_freq`.",
            snippets=(python("config.metrics.log_freq = 100"),),
        ),
    },
    safety="bit-identical",
    seen="Frames of logging are gone from most steps.",
    recipe="idle_names",
    edit="host:checkpoint-logging=0ms",
    is_in_deepspeed_json=True,
)
