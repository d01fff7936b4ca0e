"""What fits and how fast it would be, before a GPU is rented: memory and time models without torch.

Pure functions from numbers to numbers. `shape` knows models, `hardware` GPUs and links, `layout` how work is
spread over GPUs; `static_memory`, `activation_memory` and `kv_cache` count bytes, `layer_time` and `timeline`
time; `training` and `serving` put them together and `ranking` compares the ways to make a job fit. Bytes are
integers that add up. Everything that comes out is *predicted*; what it assumes stands beside it.
"""
