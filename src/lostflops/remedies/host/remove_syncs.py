"""No waiting for the GPU inside the step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="remove-syncs",
    does="The CPU reads no values from the GPU inside steps, so that it stays ahead with launches.",
    changes={
        "pytorch": Change(
            "Take `.item()`, `.cpu()` and prints of device values out of the step, or do them "
            'every hundredth step; `torch.cuda.set_sync_debug_mode("warn")` finds them.',
            snippets=(
                python("-losses.append(loss.item())", "+losses.append(loss.detach())"),
                python('torch.cuda.set_sync_debug_mode("warn")', title="to find them"),
            ),
        ),
        "hf": Change(
            "Set `logging_nan_inf_filter=False` (on by default, it waits for the GPU in every "
            "micro-batch) and a larger `logging_steps`; then take `.item()` out of your own code.",
            snippets=(python("TrainingArguments(logging_nan_inf_filter=False, logging_steps=500)"),),
        ),
        "accelerate": Change(
            "Take `gather(…).item()` and prints of device values out of the step, or do them "
            "every hundredth step; `accelerator.clip_grad_norm_` does not wait.",
            snippets=(
                python(
                    "-print(accelerator.gather(loss).mean().item())",
                    "+if step % 100 == 0:",
                    "+    print(accelerator.gather(loss).mean().item())",
                ),
            ),
        ),
        "lightning": Change(
            "Log less often (`log_every_n_steps`, `log(…, on_step=False)`, "
            "`enable_progress_bar=False`). On several ranks Lightning itself waits once per "
            "batch for its SIGTERM broadcast: no flag turns that off.",
            snippets=(
                python(
                    "trainer = Trainer(log_every_n_steps=500, enable_progress_bar=False)",
                    'self.log("loss", loss, on_step=False, on_epoch=True)  # in training_step',
                ),
            ),
        ),
        "deepspeed": Change(
            'Set `"bf16": {"check_grad_overflow": false}` and, without clipping in stages 1 and '
            '2, `"compute_grad_norm": false`; fp16 needs its overflow check.',
            snippets=(config('{"bf16": {"enabled": true, "check_grad_overflow": false}}'),),
        ),
        "megatron": Change(
            "`--no-check-for-nan-in-loss-and-grad`, a larger `--log-interval`, `--timing-log-level 0`.",
            snippets=(
                shell("--no-check-for-nan-in-loss-and-grad --log-interval 100", "--timing-log-level 0"),
            ),
        ),
        "bridge": Change(
            "`check_for_nan_in_grad=False`, `rerun_state_machine.check_for_nan_in_loss=False`, "
            "and log less often.",
            snippets=(
                python(
                    "cfg.ddp.check_for_nan_in_grad = False",
                    "cfg.rerun_state_machine.check_for_nan_in_loss = False",
                ),
            ),
        ),
        "torchtitan": Change(
            "Log less often: raise `metrics.log_freq`.",
            snippets=(python("config.metrics.log_freq = 100"),),
        ),
    },
    safety="bit-identical",
    when="`.item()`, `.cpu()`, prints or checks for NaN make the CPU wait inside steps.",
    safe="What was checked in every step is noticed later.",
    limits="The scaler of fp16 and DeepSpeed's overflow check need one value per step; experts whose "
    "tokens the host counts cannot do without.",
    seen="Calls that synchronise are gone from steps.",
    recipe="api_call_summary",
    edit="no-sync",
    is_in_deepspeed_json=True,
)
