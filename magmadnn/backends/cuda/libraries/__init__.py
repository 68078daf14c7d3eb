"""cuSOLVER, cuBLAS and cuFFT through ctypes."""
