"""Effects of designed experiments: models, fits, errors, significance."""
