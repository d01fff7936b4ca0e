"""Which worker, stage or kind of operation slows a pipelined job, found by running its steps again.

The method and its names, S, S_t, S_w, M_W and M_S, are those of "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI 2025).
"""
