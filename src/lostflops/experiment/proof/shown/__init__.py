"""A proof as people read it: its sentences, and where they are printed."""
