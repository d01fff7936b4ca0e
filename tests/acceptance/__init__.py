"""Training jobs with a planted fault, whose truth is known, and a judge who reads only the first page."""
