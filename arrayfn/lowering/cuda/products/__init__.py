"""Matrix products: what becomes a part of cuBLASLt's, and kernels of skinny ones."""
