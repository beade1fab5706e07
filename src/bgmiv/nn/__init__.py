"""Network parts: dense stacks and convolutions written for one row."""
