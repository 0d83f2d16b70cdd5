"""The policy core: trees, signals, the controller, compilation and acceptance. numpy only, never torch."""
