"""One job's tables on disk, opened lazily, and the answers that were computed from them before."""
