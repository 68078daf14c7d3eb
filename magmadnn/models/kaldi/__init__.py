"""Networks from Kaldi's descriptions of them: see `from_kaldi`."""
