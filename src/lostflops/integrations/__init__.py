"""Callbacks for Hugging Face Trainer, Lightning and Accelerate: turn remedies on, and mark the steps."""
