"""How a policy is found and kept honest: measuring, tracing, replaying, searching, confirming, freezing."""
