"""Networks from Caffe's descriptions of them."""
