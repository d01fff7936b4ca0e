"""Keys and values of dialogues, kept in host memory between turns."""
