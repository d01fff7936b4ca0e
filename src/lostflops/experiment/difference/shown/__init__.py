"""A difference as a page in a terminal, as one in HTML, and as a document."""
