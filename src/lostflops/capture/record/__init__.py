"""`lostflops record`: what is asked, the run folder, what is put into the job, and what came of it."""
