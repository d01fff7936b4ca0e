"""The same recipes on many machines: the only floor that imports Dask."""
