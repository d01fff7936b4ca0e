"""What is true of one rank among others: what holds it up, and what to do there."""
