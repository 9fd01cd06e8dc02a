"""Response surfaces over factors, and their optima."""
