"""What the methods multiply by and solve with: curvature, Jacobians and kernels over streamed data."""
