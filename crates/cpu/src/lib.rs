//! CPU backend: thread pool and vector kernels.
