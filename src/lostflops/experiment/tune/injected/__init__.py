"""What `lostflops tune` puts beside the job: copied into its folder, and on PYTHONPATH of every start."""
