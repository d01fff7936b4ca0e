"""Batches that come in time: the number of a data loader's workers, derived and measured."""
