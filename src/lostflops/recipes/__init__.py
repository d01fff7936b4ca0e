"""One file per question, each with its recipe, in sections by what is asked about."""
