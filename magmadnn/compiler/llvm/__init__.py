"""Native code for the CPU: kernels written as LLVM IR, compiled, cached and run. See README.md."""
