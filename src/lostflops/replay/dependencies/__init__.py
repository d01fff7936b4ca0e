"""What waits for what in a recording: the rules that turn tables into a dependency graph."""
