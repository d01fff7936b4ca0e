"""Who is in which process group, of sources that number the members of each group."""
