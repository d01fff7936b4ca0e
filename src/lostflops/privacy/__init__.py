"""What a recording says of people and machines: found, counted, and taken out."""
