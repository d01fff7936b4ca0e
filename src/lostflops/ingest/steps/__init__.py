"""The optimizer steps of a rank: how they are marked, how long their work takes, and which of them count."""
