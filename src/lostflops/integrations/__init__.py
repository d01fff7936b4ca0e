"""Callbacks for Hugging Face Trainer, Lightning and Accelerate: turn remedies on, and mark the steps.

    from lostflops.integrations.transformers_trainer import LostflopsCallback
    from lostflops.integrations.lightning import LostflopsCallback
    from lostflops.integrations.accelerate import lostflops_accelerate

Each takes remedies of `lostflops.optimize` by name, as their keyword arguments: `checkpoint={"every": 2}`, or
`True` for none. They begin with the training and end with it, also when it fails.
"""
