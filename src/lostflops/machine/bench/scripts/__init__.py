"""What measures runs in the Python of the job, as scripts with the standard library and torch alone."""
