"""Shows what replays of a run predict: gains and the critical path, in a terminal, as JSON and as HTML."""
