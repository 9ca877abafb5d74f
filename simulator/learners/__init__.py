"""Who trains how in a simulation: one client after another, fused kernels, worker processes."""
