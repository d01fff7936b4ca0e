"""What `lostflops record` copies into a run folder and put on the PYTHONPATH of the job."""
