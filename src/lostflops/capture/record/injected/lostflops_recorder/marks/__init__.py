"""The names that code carries in a trace: given by the user, or to the modules of a model."""
