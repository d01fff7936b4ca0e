"""From a command to a recording: what `lostflops record` does before, while and after the job runs."""
