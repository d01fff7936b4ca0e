"""What collectives cost, who is waited for, and how near they come to what the links give."""
