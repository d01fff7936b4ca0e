"""One file per question: each holds one recipe, found by its file name."""
