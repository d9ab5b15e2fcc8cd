"""Times the kernels beside plain MLX operations, what MLX compiles of these, its own built-ins and NumPy."""
