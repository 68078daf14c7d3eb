"""From a plan to an object file's steps: kernels, copies and loops on places in memory."""
