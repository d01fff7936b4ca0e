"""An evaluation inside the steps: what it takes of them, and that it can be made less often."""

from __future__ import annotations

import polars as pl

from lostflops.causes.between_steps.recurring import comes_back
from lostflops.causes.declared import EVALUATES
from lostflops.causes.names import spoken, without_place
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.idle.evaluations import COMPUTE, HOST, KEEPS, LIGHTNING, TRAINER

from .optimizer import leave_rest

FROM = 0.05  # of a step
# Of the steps, and of a rank's: one evaluation in a few recorded steps may be rare in the job, and one that
# two steps after each other share is one. One that the step log knows to come back is not rare.
OFTEN, LEAST = 0.5, 2
WHO = {TRAINER: "The Trainer evaluates", LIGHTNING: "Lightning validates"}
RARELY = {
    TRAINER: "Evaluate less often: a larger `eval_steps` in `TrainingArguments`, or "
    '`eval_strategy="epoch"`. A smaller evaluation set, or a larger `per_device_eval_batch_size`, '
    "shortens each.",
    LIGHTNING: "Validate less often: a larger `val_check_interval` in `Trainer`, or "
    "`check_val_every_n_epoch`. `limit_val_batches`, or larger batches of the validation loader, shorten "
    "each.",
}
OWN = (
    "If {} measures the model, do that less often, such as every few hundred steps, or on fewer or larger "
    "batches."
)
WITHOUT_GRADIENTS = (
    "Run it under `torch.no_grad()`, or `torch.inference_mode()`: autograd keeps its activations for a "
    "backward pass that does not follow."
)


def evaluates_often(page: PageFindings) -> None:
    """Tell what evaluations take of the steps by itself, where most steps have one or it comes again."""
    given, steps = page.given, max(1, page.given.num_steps)
    host = given.evaluations.filter(account=HOST)
    idle = given.evaluations.filter(~pl.col("account").is_in([HOST, COMPUTE, KEEPS]))
    computes = int(given.evaluations.filter(account=COMPUTE)["ns"].sum()) // steps
    times, idles = host.height, int(idle["ns"].sum()) // steps
    apart = pl.col("step").max() - pl.col("step").min() > 1
    some = host.group_by("rank").agg(pl.len(), again=apart).filter(pl.col("len") >= LEAST)
    often = some.height > 0 and (times >= OFTEN * steps or some["again"].any())
    often = often or comes_back(page, host.select("rank", "step"))
    if not often or not page.reaches(computes + idles, FROM):
        return
    each = "each step" if times == steps else f"{times} of {steps} steps"
    spent = int(host["ns"].sum()) // steps
    by, own = str(host["name"][0]), spoken(str(host["name"][0]))
    who = WHO.get(by) or f"{without_place(own)} runs the model without training it"
    keeps = not given.evaluations.filter(account=KEEPS).is_empty()
    made_of = f"the GPU computes {milliseconds(computes)} of it and idles {milliseconds(idles)}"
    limit = (f"upper limit: the CPU's {milliseconds(spent)} and the GPU's time in it",)
    # What else the busiest stream does stays.
    bound = min(spent, given.beside_work // steps) + computes
    if given.on_host:
        made_of = f"operators run for {milliseconds(computes)} of it, and nothing for {milliseconds(idles)}"
        bound, limit = spent, ()
    alone = len(given.steps) == 1  # ranks that evaluate one after the other wait for each other
    leave_rest(page, idle, sorted(set(idle["account"])), "without what lies in the evaluation")
    page.put(
        Finding(
            name=EVALUATES.name,
            claim=f"{who} in {each}, which takes {page.share(computes + idles)}.",
            gain="at most" if alone else "unknown",
            ns_per_step=bound if alone else 0,
            cost_per_step=computes + idles,
            evidence=(made_of, *(limit if alone else ())),
            next=" ".join((*((WITHOUT_GRADIENTS,) if keeps else ()), RARELY.get(by) or OWN.format(own))),
            remedies=(),
            recipe="idle_summary",
            accounts=tuple(sorted(set(idle["account"]))),
        )
    )
