"""The embedded pair `tiny-llava-ov`: synthetic data, training and evaluation (run with `python -m`)."""
