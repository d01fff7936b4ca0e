"""What a layer reads and leaves behind, so that it computes the same when it is computed again."""
