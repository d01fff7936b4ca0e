"""How fast copies and collectives are on the machines of a job, measured."""
