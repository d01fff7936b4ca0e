"""What is copied into a recording and put on the PYTHONPATH of the job."""
