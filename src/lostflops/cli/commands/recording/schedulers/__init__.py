"""What `lostflops launch` can start a job through: a file per scheduler, in the form of a command's file."""
