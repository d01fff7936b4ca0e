"""Exchanges of experts under compute."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="expert-overlap",
    does="Tokens travel to their experts while another micro-batch or a shared expert computes.",
    changes={
        "pytorch": Change(
            "Overlap the exchange with the matrix products of another micro-batch, keep its "
            "ranks within a node, and even out the tokens per expert (the router's auxiliary "
            "loss).",
            snippets=(
                python(
                    "work = torch.distributed.all_to_all_single(",
                    "    received, sent, group=experts, async_op=True",
                    ")",
                    "shared = shared_expert(hidden)",
                    "work.wait()",
                ),
            ),
        ),
        "hf": Change(
            "Even out the tokens per expert (`router_aux_loss_coef` of the model), and keep "
            "experts that exchange tokens within a node.",
            snippets=(python("model.config.router_aux_loss_coef = 0.01"),),
            note="The Trainer has no switch for the overlap.",
        ),
        "megatron": Change(
            "Overlap it: `--overlap-moe-expert-parallel-comm`, with `--moe-token-dispatcher-type "
            "flex --moe-flex-dispatcher-backend deepep`; `--moe-shared-expert-overlap` hides "
            "part of it behind shared experts.",
            snippets=(
                shell(
                    "--overlap-moe-expert-parallel-comm",
                    "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
                ),
            ),
        ),
        "bridge": Change(
            "Overlap it: `overlap_moe_expert_parallel_comm = True`, with the flex dispatcher; "
            "setting its backend alone does nothing.",
            snippets=(
                python(
                    "cfg.comm_overlap.overlap_moe_expert_parallel_comm = True",
                    'cfg.model.moe_token_dispatcher_type = "flex"',
                ),
            ),
        ),
        "torchtitan": Change(
            'Use the dispatcher `moe_comm_backend="hybridep"`, and keep experts that exchange '
            "tokens within a node.",
            snippets=(python('model_spec = model_registry("16B", moe_comm_backend="hybridep")'),),
        ),
    },
    safety="numerically close",
    when="All-to-alls are exposed, and more than 4 ranks share the experts.",
    limits="Not with full recomputation, nor with overlapping shared experts; with pipeline stages it "
    "needs virtual ones.",
    seen="All-to-alls run under the experts' matrix products.",
    recipe="communication_exposed",
    edit="overlap",
)
