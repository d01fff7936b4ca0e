"""What if ranks exchanged, shared or ordered their work in another way."""
