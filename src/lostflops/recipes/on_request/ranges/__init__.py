"""The ranges that your code marks, one by one: pace, nesting, and what each runs on the GPU."""
