"""Jobs made up and then broken, in every form that is read: each is refused in words, or adds up."""
