"""How the devices of a machine are linked, asked of its tools and of Linux."""
