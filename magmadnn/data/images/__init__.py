"""Readers of images: IDX files, CIFAR's binary batches, folders of JPEG and PNG files."""
