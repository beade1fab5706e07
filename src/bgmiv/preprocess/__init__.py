"""What is computed of covariates before any network sees them."""
