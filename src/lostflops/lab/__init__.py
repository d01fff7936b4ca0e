"""Jobs to learn and test with: made up, with a truth that is known."""
