"""Calls of libraries on the host: MPI, UCX, cuBLAS, cuDNN, OpenMP, OpenACC and video codecs."""
