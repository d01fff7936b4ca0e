"""The modules whose numbers every page rests on, and the quick tests that must notice when one is wrong."""

from __future__ import annotations

CONTRACT = "tests/recipes/test_contract.py"
# The recipes that are made of the accounts.
LEDGER = (
    "tests/recipes/test_ledger.py",
    "tests/recipes/test_ledger_layers.py",
    "tests/recipes/test_ledger_origins.py",
    "tests/recipes/test_first_calls.py",
    "tests/recipes/test_lost_kernels.py",
    "tests/causes/test_host_stretches.py",
    CONTRACT,
    # These ask the same of more cases: a quarter of a minute for each mutant that survives the others.
    "--deselect=tests/recipes/test_ledger.py::test_splitting_a_step_splits_its_accounts",
    "--deselect=tests/recipes/test_ledger.py::test_the_order_of_rows_does_not_matter",
    "-k=ledger or lost_ or host_stretches or first_calls or device_runs or idle_ or host_spans or copies_by",
)
PLANNER = (
    "tests/plan/test_plan_by_hand.py",
    # Whole rankings of layouts.
    "--deselect=tests/plan/test_plan_by_hand.py::test_each_verdict_on_training",
    "--deselect=tests/plan/test_plan_by_hand.py::test_unified_memory_is_never_the_headline",
)
STEPS = (
    "tests/ingest/test_step_limits.py",
    "tests/ingest/test_steps.py",
    "tests/ingest/test_step_windows.py",
    *(
        f"--deselect=tests/ingest/test_step_windows.py::test_{test}"
        for test in (  # these draw many cases or read whole traces
            "steps_tile_and_hold_what_they_launched",
            "ranks_that_run_ahead_wait_for_the_one_that_is_slower",
            "one_step_says_both_lengths",
            "a_rate_is_told_of_steps_that_show_how_long_one_takes",
            "hosts_and_devices_that_agree_are_not_told",
            "an_outlier_is_named_with_its_cause_and_kept_out_of_the_mean",
            "a_healthy_run_has_no_outlier",
            "each_process_of_an_export_has_its_own_steps_on_the_devices_clock",
        )
    ),
)
TOGETHER = "tests/causes/test_told_together.py"
INTERVALS = ("tests/intervals/test_intervals.py", "tests/intervals/test_order.py")

PROVING = ("data_loading", "checkpoint_logging", "compilation", "host_synchronisation", "memory_allocator")

# Tests that take long or run other processes are not here: a mutant is not installed in another process.
CORE: dict[str, tuple[str, ...]] = {
    "lostflops.recipes.accounting": LEDGER,
    "lostflops.recipes.first_calls": ("tests/recipes/test_first_calls.py",),
    "lostflops.recipes.steps.ledger": LEDGER,
    "lostflops.intervals.matching": ("tests/intervals/test_matching.py",),
    "lostflops.intervals.nesting": INTERVALS,
    "lostflops.intervals.order": INTERVALS,
    "lostflops.intervals.sets": INTERVALS,
    "lostflops.ingest.times.clocks": ("tests/ingest/test_clocks.py",),
    "lostflops.ingest.steps.counted": STEPS,
    "lostflops.ingest.steps.marks": STEPS,
    "lostflops.ingest.steps.on_device": STEPS,
    "lostflops.plan.train.static_memory": PLANNER,
    "lostflops.plan.serve.inference": PLANNER,
    "lostflops.plan.serve.kv_cache": PLANNER,
    "lostflops.naming.classification": ("tests/naming/test_classification.py",),
    "lostflops.naming.host_causes": ("tests/naming/test_host_causes.py",),
    **{f"lostflops.accounts.idle.{name}": ("tests/naming/test_host_causes.py",) for name in PROVING},
    **{
        f"lostflops.causes.{name}": (
            "tests/causes/test_host_by_hand.py",
            "tests/causes/test_host_limits.py",
            "tests/causes/test_fitting_advice.py",
            "tests/causes/test_names_of_idle_time.py",
            "tests/causes/test_false_sentences.py::test_a_pause_in_two_steps_comes_once",
            "tests/causes/test_lateness.py::test_names_of_idle_time_are_those_of_its_account",
        )
        for name in ("idle.named", "idle.occurrence")
    },
    "lostflops.causes.host": (
        "tests/causes/test_host_by_hand.py",
        "tests/causes/test_host_limits.py",
        "tests/causes/test_saving_beside.py",
        "tests/causes/test_python_beside.py",
    ),
    **{
        f"lostflops.causes.{name}": (
            "tests/causes/test_lateness.py",
            "tests/causes/test_lateness_limits.py",
            "tests/causes/test_lateness_in_turn.py",
            "tests/causes/test_late_bounds.py",
            "tests/causes/test_late_words.py",
            TOGETHER,
            "tests/versions/test_untold_lateness.py",
        )
        for name in ("lateness", "one_rank.late", "own_time.spent", "own_time.together")
    },
    "lostflops.causes.between_ranks.several": (
        TOGETHER,
        *(
            f"tests/causes/test_ranks_late_together.py::test_{test}"
            for test in (  # the others simulate whole jobs
                "what_slow_cpus_cost_is_told_where_nobody_waits_for_them_in_the_open",
                "no_more_is_told_where_a_replay_gains_no_more_than_is_waited",
                "two_ranks_of_which_one_alone_gains_less_than_half_are_told_together",
            )
        ),
    ),
    "lostflops.recipes.compute.busiest_stream": (CONTRACT, "-k=busiest_stream"),
    "lostflops.optimize.activations.saved": (
        "tests/optimize/activations/test_saved_exact.py",
        "tests/optimize/activations/test_saved.py",
        "-k=not closed_form",
    ),
    "lostflops.optimize.activations.saved_views": (
        "tests/optimize/activations/test_saved_exact.py",
        "tests/optimize/activations/test_engine.py",
        "-k=view or travel or lie or gathered",
    ),
}
