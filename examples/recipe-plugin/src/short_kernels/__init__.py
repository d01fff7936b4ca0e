"""A recipe for lostflops, as a package of its own."""
