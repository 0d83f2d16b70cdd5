"""Numbers of the product, each as a script whose last stdout line is one JSON document."""
