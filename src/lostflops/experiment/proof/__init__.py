"""What a change gained, by how much and how sure: starts of both versions in pairs, and what they tell.

The unit is the start of a process, never a step: steps of one start say nothing of how the next one differs.
"""
