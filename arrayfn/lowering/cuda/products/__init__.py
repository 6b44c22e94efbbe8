"""Matrix products: epilogues of cuBLASLt's products, and kernels of skinny products."""
