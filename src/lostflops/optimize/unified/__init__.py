"""Unified memory behind torch's allocator: what does not fit on the GPU may lie in the host's memory."""
